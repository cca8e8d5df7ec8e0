package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

// Config says which workers there are. The zero value of a field is its default.
type Config struct {
	Local  []LocalWorker
	Remote []RemoteWorker

	// Processes says by backend how models share the processes of this host; "" is for all others. nil: all
	// share those of Local. A model's parameter ProcessParameter goes before it.
	Processes map[string]Sharing
	// MaxProcesses bounds the processes beside those of Local; 64.
	MaxProcesses int

	GatewayVersion string

	RequestArena  int64 // bytes that bodies and batches to all local workers share; 256 MiB
	ResponseArena int64 // bytes of results, for each local worker; 256 MiB
	Lane          shm.LaneConfig
	UseStream     bool // batches to local workers take the gRPC stream too

	// Ears read the results of local workers, which they must go on with until Workers is
	// closed; nil: a goroutine for each worker does.
	Ears Ears

	StartTimeout  time.Duration // until a worker has said hello; 30 s
	WatchInterval time.Duration // between reports of a worker; 1 s
	HealthTimeout time.Duration // a worker silent for so long is ended; 10 s
	WaitTime      time.Duration // how long a load waits for a worker that is down; 30 s
	// OpenTimeout is how long nothing may be heard of an open request without a timeout of its
	// own. Some time later it is failed: a worker does that first, if it does. 5 min
	OpenTimeout time.Duration
	KillAfter   time.Duration // how long a worker may take to end by itself; 3 s

	Backoff      time.Duration // before the second restart in a row, doubled for each after; 100 ms
	BackoffMax   time.Duration // 10 s
	HealthyAfter time.Duration // who served at least so long is started again at once (backoff); 1 s
}

// Ears serve what comes through memory; gateway/loop fits it.
type Ears interface {
	// Attach runs a source, now and whenever the descriptor fd becomes readable.
	Attach(fd int, s Source) error
	// Detach lets go of the descriptor of a source that has ended.
	Detach(fd int)
}

// Source is what Ears run, never two calls at a time.
type Source = interface {
	// Run serves what there is, and does not wait. more is false when it has ended; woke
	// says that it has made a goroutine ready.
	Run() (more, woke bool)
	// Ready says that there is something to run for. Once it has said no, its descriptor
	// tells when there is.
	Ready() bool
}

// LocalWorker is a worker process of this host.
type LocalWorker struct {
	Name   string   // "": that of its device
	Path   string   // of the sluice-worker binary, or of a program
	Args   []string // after "--inherited --device=…", or "--listen=unix:…"
	Env    []string // nil: that of the gateway
	GPU    bool
	Device int // CUDA ordinal; for a GPU
	// Program says that it is no sluice-worker but a program of its own, with which no
	// memory is shared: see openProgram. One that does not start is tried again.
	Program bool
}

// RemoteWorker is a worker that somebody else started.
type RemoteWorker struct {
	// Address is host:port; or unix:PATH of a worker on this host, in whatever
	// container, which shares memory as a local one does.
	Address string
	TLS     TLSFiles // zero: plain text, for tests and private links
}

// socket is the path of a worker's Unix socket.
func (w *RemoteWorker) socket() (string, bool) { return strings.CutPrefix(w.Address, "unix:") }

// TLSFiles are PEM files for mutual TLS: the gateway's certificate and key, and the
// authorities whose certificates workers must show. They are read at each connection,
// so that they may be renewed.
type TLSFiles struct{ Cert, Key, CA string }

func (f TLSFiles) credentials() (credentials.TransportCredentials, error) {
	if f == (TLSFiles{}) {
		return insecure.NewCredentials(), nil
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("TLS authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("TLS authority: the file has no certificate")
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS13}), nil
}

// Deps are what Workers stands on.
type Deps struct {
	Log *slog.Logger // nil: nothing is logged
	// Responses counts the heap memory of results of workers with which no memory is shared; nil: it is not counted.
	Responses *infer.Budget
	// Calls does what models ask the gateway for; nil: they can't ask.
	Calls Calls
}

func (c *Config) setDefaults() {
	setDefault(&c.RequestArena, 256<<20)
	setDefault(&c.ResponseArena, 256<<20)
	setDefault(&c.StartTimeout, 30*time.Second)
	setDefault(&c.WatchInterval, time.Second)
	setDefault(&c.HealthTimeout, 10*time.Second)
	setDefault(&c.WaitTime, 30*time.Second)
	setDefault(&c.OpenTimeout, 5*time.Minute)
	setDefault(&c.KillAfter, 3*time.Second)
	setDefault(&c.Backoff, 100*time.Millisecond)
	setDefault(&c.BackoffMax, 10*time.Second)
	setDefault(&c.HealthyAfter, time.Second)
	setDefault(&c.Lane.Mailboxes, 1024)
	setDefault(&c.MaxProcesses, 64)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate reports all faults at once.
func (c *Config) validate() error {
	var errs []error
	if len(c.Local)+len(c.Remote) == 0 {
		errs = append(errs, errors.New("no worker is configured"))
	}
	for i := range c.Local {
		if c.Local[i].Path == "" {
			errs = append(errs, fmt.Errorf("local worker %d has no binary", i))
		}
	}
	for i := range c.Remote {
		if path, ok := c.Remote[i].socket(); ok {
			if !filepath.IsAbs(path) {
				errs = append(errs, fmt.Errorf("worker %q: the path of a Unix socket is absolute", c.Remote[i].Address))
			}
			continue
		}
		if _, _, err := net.SplitHostPort(c.Remote[i].Address); err != nil {
			errs = append(errs, fmt.Errorf("remote worker %q: %w", c.Remote[i].Address, err))
		}
		if _, err := c.Remote[i].TLS.credentials(); err != nil {
			errs = append(errs, fmt.Errorf("remote worker %q: %w", c.Remote[i].Address, err))
		}
	}
	for backend, how := range c.Processes {
		if !how.Valid() {
			errs = append(errs, fmt.Errorf("backend %q can't have processes that are %q", backend, how))
		}
	}
	for name, n := range map[string]int64{"request arena": c.RequestArena, "response arena": c.ResponseArena} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("the %s can't have %d bytes", name, n))
		}
	}
	return errors.Join(errs...)
}

// sharesMemory says that a worker maps the request arena.
func (c *Config) sharesMemory() bool {
	return slices.ContainsFunc(c.Local, func(w LocalWorker) bool { return !w.Program }) ||
		slices.ContainsFunc(c.Remote, func(w RemoteWorker) bool {
			_, ok := w.socket()
			return ok
		})
}

func (l *LocalWorker) name() string {
	if l.Name != "" {
		return l.Name
	}
	if l.GPU {
		return fmt.Sprintf("gpu:%d", l.Device)
	}
	return "cpu"
}
