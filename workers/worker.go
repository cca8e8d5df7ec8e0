package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// maxBackends bounds how many backends with different options a worker opens.
const maxBackends = 64

// Protocol is the version of proto/worker that this worker speaks.
const Protocol = 2

// Worker is one worker process. New makes it, Run runs it, once.
type Worker struct {
	config Config
	deps   Deps
	log    *slog.Logger
	server *grpc.Server

	faults   atomic.Uint64  // broken rules and panics of backends
	running  sync.WaitGroup // unloads
	stopping chan struct{}  // closed when Run begins to end
	losses   losses
	lost     chan struct{} // closed when the inherited gateway has gone
	lostOnce sync.Once

	gpuMu sync.Mutex // held over Deps.GPU

	threadsMu sync.Mutex // held over Deps.Instances
	threads   int        // guarded by threadsMu: instances that run

	cudaOnce  sync.Once
	gpu       *gpu // valid after cudaOnce; nil: it could not be opened
	cudaErr   error
	gpuOpened atomic.Bool // it is valid
	inherited *lane       // of Deps.Conn; set by listen

	kept *keepWatch // over what backends keep

	hostMemory   *footprint
	deviceMemory *footprint // nil: no GPU, or nothing tells

	mu          sync.Mutex
	closing     bool                     // guarded by mu: no call to a backend may begin
	backends    map[string]*opened       // guarded by mu: by name and options
	connections map[*connection]struct{} // guarded by mu
}

// opened is a backend, or why it can't be.
type opened struct {
	once    sync.Once
	name    string
	backend backend.Backend
	err     error
}

// New checks the config and reads the TLS files. It starts nothing.
func New(config Config, deps Deps) (*Worker, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if deps.Conn == nil && config.Listen == "" {
		return nil, errors.New("a worker wants an inherited connection or an address to listen on")
	}
	tlsConfig, err := config.TLS.load()
	if err != nil {
		return nil, err
	}
	w := &Worker{
		config: config, deps: deps, log: deps.Log,
		stopping: make(chan struct{}), lost: make(chan struct{}),
		backends: map[string]*opened{}, connections: map[*connection]struct{}{},
	}
	w.kept = newKeepWatch(config.OpenTimeout)
	w.hostMemory = newFootprint(privateBytes)
	if config.Device.GPU && deps.GPU != nil {
		w.deviceMemory = newFootprint(w.deviceBytes)
	}
	const window = 8 << 20
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(config.MaxMessage), grpc.MaxSendMsgSize(config.MaxMessage),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2 * window),
		grpc.ReadBufferSize(64 << 10), grpc.WriteBufferSize(64 << 10),
		grpc.MaxConcurrentStreams(1024), grpc.UnknownServiceHandler(refuseOthers),
	}
	if config.Listen != "" {
		options = append(options,
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	}
	if _, ok := SocketPath(config.Listen); ok && deps.Conn == nil {
		options = append(options, grpc.Creds(handover{w}), grpc.ConnectionTimeout(handoverTime))
	}
	if tlsConfig != nil && deps.Conn == nil {
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	w.server = grpc.NewServer(options...)
	worker.RegisterWorkerServer(w.server, &service{worker: w})
	return w, nil
}

// Run serves until ctx ends or the inherited gateway has gone, then unloads all. A
// listening worker first lets its batches finish, up to ExitTimeout. Run calls ready,
// where it is not nil, with the address once it is served.
func (w *Worker) Run(ctx context.Context, ready func(net.Addr)) error {
	l, err := w.listen(ctx)
	if err != nil {
		return errors.Join(err, w.closeInherited())
	}
	defer w.kept.start()()
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	if ready != nil {
		ready(l.Addr())
	}
	select {
	case <-ctx.Done():
	case <-w.lost:
	case err = <-served:
		served <- err // for the one who waits below
	}
	close(w.stopping)
	w.stopServer()
	if errServe := <-served; errServe != nil && !errors.Is(errServe, grpc.ErrServerStopped) {
		err = errors.Join(err, errServe)
	}
	return errors.Join(err, w.closeAll())
}

// listen is where gateways come from: the inherited connection, a Unix socket or TCP.
func (w *Worker) listen(ctx context.Context) (net.Listener, error) {
	if w.deps.Conn != nil {
		var l *lane
		if w.deps.Shared != nil {
			l = newLane(*w.deps.Shared, w.config.MemoryWait)
			w.inherited = l
		}
		c := newConnection(w, w.deps.Conn, l)
		c.local = true
		w.remember(c)
		return newSingle(c), nil
	}
	if path, ok := SocketPath(w.config.Listen); ok {
		l, err := listenSocket(ctx, path)
		if err != nil {
			return nil, err
		}
		return listener{l, w}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", w.config.Listen)
	if err != nil {
		return nil, err
	}
	if a, ok := l.Addr().(*net.TCPAddr); w.config.TLS == (TLS{}) && (!ok || !a.IP.IsLoopback()) {
		return nil, errors.Join(fmt.Errorf("without TLS a worker listens on loopback alone, not on %v", l.Addr()), l.Close())
	}
	return listener{l, w}, nil
}

// stopServer lets streams finish what is in flight, for a bounded time.
func (w *Worker) stopServer() {
	if w.deps.Conn == nil {
		force := time.AfterFunc(w.config.ExitTimeout, w.server.Stop)
		w.server.GracefulStop()
		force.Stop()
	}
	w.server.Stop()
}

// closeAll unloads what connections left and closes backends and shared memory, if
// no model hangs for longer than ExitTimeout.
func (w *Worker) closeAll() error {
	w.mu.Lock()
	w.closing = true
	connections := slices.Collect(maps.Keys(w.connections))
	w.mu.Unlock()
	for _, c := range connections {
		_ = c.Close() // the server may have closed it before
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.running.Wait()
	}()
	limit := time.NewTimer(w.config.ExitTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		return fmt.Errorf("a model was still being unloaded after %v", w.config.ExitTimeout)
	}
	var errs []error
	for _, o := range w.backends {
		if o.backend != nil {
			errs = append(errs, o.backend.Close())
		}
	}
	if w.inherited != nil {
		errs = append(errs, w.inherited.unpin())
	}
	errs = append(errs, w.closeInherited(), w.closeDriver())
	return errors.Join(errs...)
}

func (w *Worker) closeInherited() error {
	var errs []error
	if w.deps.Conn != nil {
		_ = w.deps.Conn.Close() // the server may have closed it before
	}
	if w.deps.Shared != nil {
		errs = append(errs, w.deps.Shared.Close())
	}
	return errors.Join(errs...)
}

// begin counts a call to a backend that no model stands for; running.Done ends it.
func (w *Worker) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the worker is stopping")
	}
	w.running.Add(1)
	return nil
}

// gatewayGone ends the process, or Run where there is no Exit.
func (w *Worker) gatewayGone() {
	w.lostOnce.Do(func() {
		select {
		case <-w.stopping: // it is us who closed the connection
		default:
			if w.deps.Exit != nil {
				w.deps.Exit(0)
			}
		}
		close(w.lost)
	})
}

// corrupt is called when a gateway wrote what can't be decoded.
func (w *Worker) corrupt(err error) {
	w.log.Error("the gateway wrote a batch that makes no sense; the worker ends", "error", err)
	w.lostOnce.Do(func() {
		if w.deps.Exit != nil {
			w.deps.Exit(1)
		}
		close(w.lost)
	})
}

func (w *Worker) remember(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connections[c] = struct{}{}
}

func (w *Worker) forget(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.connections, c)
}

// backendFor opens a backend with its options, or finds the one that is open.
func (w *Worker) backendFor(name string, options map[string]string) (backend.Backend, error) {
	factory := w.deps.Backends[name]
	if factory == nil {
		return nil, infer.Errorf(infer.InvalidArg, "this worker has no backend '%s', it has %s", name,
			strings.Join(slices.Sorted(maps.Keys(w.deps.Backends)), ", "))
	}
	key := []byte(name)
	for _, k := range slices.Sorted(maps.Keys(options)) {
		key = fmt.Appendf(key, "\x00%q=%q", k, options[k])
	}
	w.mu.Lock()
	o := w.backends[string(key)]
	if o == nil {
		if len(w.backends) >= maxBackends {
			w.mu.Unlock()
			return nil, infer.Errorf(infer.ResourceExhausted, "backends were opened with %d different options", maxBackends)
		}
		o = &opened{name: name}
		w.backends[string(key)] = o
	}
	w.mu.Unlock()
	o.once.Do(func() {
		defer w.recovered(name, "opening the backend", &o.err)
		o.backend, o.err = factory(options)
	})
	return o.backend, o.err
}
