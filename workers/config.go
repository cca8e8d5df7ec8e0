package workers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// DefaultDeviceMemory is 1 GiB: see Config.DeviceMemory.
const DefaultDeviceMemory = int64(1) << 30

// Device is what a worker owns. The zero value is the CPU.
type Device struct {
	GPU   bool
	Index int // CUDA ordinal, as this process sees it
}

// ParseDevice reads the flag --device: "cpu" or "gpu:N".
func ParseDevice(s string) (Device, error) {
	if s == "cpu" {
		return Device{}, nil
	}
	if n, ok := strings.CutPrefix(s, "gpu:"); ok {
		if i, err := strconv.ParseUint(n, 10, 16); err == nil {
			return Device{GPU: true, Index: int(i)}, nil
		}
	}
	return Device{}, fmt.Errorf("device %q: want cpu or gpu:N", s)
}

// String is the device as ParseDevice reads it.
func (d Device) String() string {
	if d.GPU {
		return "gpu:" + strconv.Itoa(d.Index)
	}
	return "cpu"
}

// Config are the values of a worker.
type Config struct {
	Version string // told to gateways
	Device  Device
	// Listen is the TCP address for gateways of other hosts, or unix:PATH for those of
	// this host, in whatever container, which then share memory with it; "" for an
	// inherited connection alone.
	Listen string
	TLS    TLS
	// Insecure lets a loopback address be served without TLS.
	Insecure bool
	// MemoryWait is how long a batch waits while the response arena is full; 0: 1 s.
	MemoryWait time.Duration
	// ExitTimeout bounds the drain when a listening worker stops; 0: 30 s.
	ExitTimeout time.Duration
	// OpenTimeout is how long nothing may be heard of a request that a backend keeps open
	// and that has no timeout of its own; 0: 5 min. It is then failed.
	OpenTimeout time.Duration
	// CUDALibrary is the CUDA driver's shared library, for regions of device memory; "":
	// libcuda.so.1, where the dynamic linker finds it. It is loaded when the first is opened.
	CUDALibrary string
	// DeviceMemory bounds the memory of the GPU that the worker itself takes for tensors, which
	// instances hand over and leave for each other; 0: DefaultDeviceMemory. What is over it lies on the host.
	DeviceMemory int64
	// MaxMessage bounds one message of the Execute stream in bytes, and an input that is
	// copied out of a client's memory; 0: 1 GiB.
	MaxMessage int
}

// TLS are PEM files: the worker's certificate and key, and the authorities whose
// certificates gateways must show.
type TLS struct{ Cert, Key, CA string }

// Deps are what a worker works with.
type Deps struct {
	Log      *slog.Logger
	Backends map[string]backend.Factory
	// Instances is told how many instances have a thread of their own, each time that changes;
	// nil: nobody is. One call runs at a time.
	Instances func(n int)
	// GPU reads the state of the worker's GPU; nil where there is none. It is called
	// by one goroutine at a time.
	GPU func() (*worker.DeviceState, error)
	// Conn is the inherited connection and Shared the memory that came with it; nil
	// without. The worker closes both.
	Conn   net.Conn
	Shared *Shared
	// Exit ends the process at once, whatever hangs: it is called when the gateway of
	// Conn has gone, with 0, or has written nonsense, with 1. Where it is nil, or
	// returns, Run ends instead.
	Exit func(code int)
}

// Validate reports all faults of c.
func (c *Config) Validate() error {
	var errs []error
	if c.MemoryWait < 0 || c.ExitTimeout < 0 || c.OpenTimeout < 0 || c.MaxMessage < 0 || c.DeviceMemory < 0 {
		errs = append(errs, errors.New("times and sizes can't be negative"))
	}
	if c.Listen == "" {
		return errors.Join(errs...)
	}
	if path, ok := SocketPath(c.Listen); ok {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("listen address: the path of a Unix socket is absolute, unlike %q", path))
		}
		if c.TLS != (TLS{}) {
			errs = append(errs, errors.New("a Unix socket has no TLS; its folder's permissions say who may connect"))
		}
		return errors.Join(errs...)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		errs = append(errs, fmt.Errorf("listen address: %w", err))
	}
	switch none := c.TLS == (TLS{}); {
	case none && !c.Insecure:
		errs = append(errs, errors.New("listening on TCP needs a certificate, a key and the gateways' authority (mutual TLS)"))
	case none && !isLoopback(host):
		errs = append(errs, fmt.Errorf("without TLS a worker listens on loopback alone, not on %q", host))
	case !none && (c.TLS.Cert == "" || c.TLS.Key == "" || c.TLS.CA == ""):
		errs = append(errs, errors.New("certificate, key and authority are needed together"))
	}
	return errors.Join(errs...)
}

// SocketPath is the path in an address unix:PATH.
func SocketPath(address string) (string, bool) { return strings.CutPrefix(address, "unix:") }

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *Config) setDefaults() {
	if c.MemoryWait == 0 {
		c.MemoryWait = time.Second
	}
	if c.ExitTimeout == 0 {
		c.ExitTimeout = 30 * time.Second
	}
	if c.OpenTimeout == 0 {
		c.OpenTimeout = 5 * time.Minute
	}
	if c.CUDALibrary == "" {
		c.CUDALibrary = "libcuda.so.1"
	}
	if c.DeviceMemory == 0 {
		c.DeviceMemory = DefaultDeviceMemory
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 1 << 30
	}
}

// load reads the files; nil where none are named.
func (t TLS) load() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("TLS authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("TLS authority: the file has no certificate")
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		MinVersion:   tls.VersionTLS13,
	}, nil
}
