package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/tick"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// protocol is the version of proto/worker.
const protocol = 2

// session is one connection to a worker, from its start to its end. What ends it is
// told to fail, by whoever sees it first; supervise then closes it.
type session struct {
	log      *slog.Logger
	arena    *shm.Arena // of requests
	conn     *grpc.ClientConn
	client   workerpb.WorkerClient
	hello    *workerpb.HelloResponse
	link     link
	process  *process      // nil: somebody else started it
	input    io.Closer     // of a program, which ends when it is closed; nil for others
	memory   *peerMemory   // nil: of another host
	budget   *infer.Budget // Deps.Responses
	regions  regionSet
	peers    *peers
	resident *residentTable // the Workers'
	worker   *worker
	desk     *desk       // nil: its models make no calls
	stream   *callStream // of desk
	inline   *laneCalls  // of desk; nil: no lane

	cancel  context.CancelFunc // of the stream and of the tasks
	readers sync.WaitGroup     // of results
	tasks   sync.WaitGroup     // watching, reloading
	once    sync.Once
	cause   error         // set before lost closes
	lost    chan struct{} // closed by fail
	idle    chan struct{} // closed by stopReading when no result is read any more

	alive atomic.Bool // it reported since guard looked

	mu     sync.Mutex
	socket net.Conn // guarded by mu: under conn; nil before it is dialed
	closed bool     // guarded by mu
}

func newSession(log *slog.Logger) *session {
	return &session{log: log, cancel: func() {}, lost: make(chan struct{}), idle: make(chan struct{})}
}

func (s *session) fail(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.lost)
	})
}

func (s *session) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// watchedConn tells a session of the end of its connection before gRPC does.
type watchedConn struct {
	net.Conn
	session *session
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.session.fail(fmt.Errorf("connection ended: %w", err))
	}
	return n, err
}

// oneConn dials once: a worker that lost its connection has lost what was loaded.
type oneConn struct {
	session *session
	dial    func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	dialed bool // guarded by mu
}

func (o *oneConn) connect(ctx context.Context, _ string) (net.Conn, error) {
	o.mu.Lock()
	dialed := o.dialed
	o.dialed = true
	o.mu.Unlock()
	if dialed {
		return nil, errors.New("the connection ended")
	}
	conn, err := o.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.session.own(conn); err != nil {
		return nil, err
	}
	return &watchedConn{conn, o.session}, nil
}

func (s *session) connect(target string, creds credentials.TransportCredentials, dial func(ctx context.Context) (net.Conn, error)) error {
	one := &oneConn{session: s, dial: dial}
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithContextDialer(one.connect),
		grpc.WithTransportCredentials(creds),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // it would hold on to tensors
		grpc.WithInitialWindowSize(8<<20),
		grpc.WithInitialConnWindowSize(16<<20),
		grpc.WithReadBufferSize(128<<10),
		grpc.WithWriteBufferSize(128<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return fmt.Errorf("gRPC client: %w", err)
	}
	s.conn, s.client = conn, workerpb.NewWorkerClient(conn)
	return nil
}

// openLocal starts a worker process and connects to it.
func (s *session) openLocal(c *Config, w LocalWorker, requests *shm.Arena) error {
	if err := s.share(c); err != nil {
		return err
	}
	pass, err := s.regions.newPass()
	if err != nil {
		return err
	}
	p, conn, err := startProcess(w, sharedFiles(requests, s.memory, pass), s.log, func(err error) {
		if err == nil {
			err = errors.New("exit status 0")
		}
		s.fail(fmt.Errorf("process ended: %w", err))
	})
	if err := errors.Join(err, shm.CloseDescriptors(pass)); err != nil {
		return err
	}
	s.process = p
	if err := s.own(conn); err != nil {
		return err
	}
	return s.connect("worker", insecure.NewCredentials(), func(context.Context) (net.Conn, error) { return conn, nil })
}

// openSocket connects to a worker that listens at a path of this host, and shares
// memory with it.
func (s *session) openSocket(ctx context.Context, c *Config, path string, requests *shm.Arena) error {
	ctx, stop := context.WithTimeout(ctx, c.StartTimeout)
	defer stop()
	var d net.Dialer
	dialed, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	conn, ok := dialed.(*net.UnixConn)
	if !ok {
		return errors.Join(fmt.Errorf("a connection of type %T", dialed), dialed.Close())
	}
	if err := s.own(conn); err != nil {
		return err
	}
	if err := s.share(c); err != nil {
		return err
	}
	pass, err := s.regions.newPass()
	if err != nil {
		return err
	}
	err = shm.SendDescriptors(conn, sharedFiles(requests, s.memory, pass)...)
	if err := errors.Join(err, shm.CloseDescriptors(pass)); err != nil {
		return err
	}
	return s.connect("worker", insecure.NewCredentials(), func(context.Context) (net.Conn, error) { return conn, nil })
}

// share makes the memory that a worker of this host answers into.
func (s *session) share(c *Config) error {
	responses, err := shm.NewPeerArena("sluice-responses", c.ResponseArena)
	if err != nil {
		return err
	}
	lane, err := shm.NewLane(c.Lane)
	if err != nil {
		return errors.Join(err, responses.Close())
	}
	s.memory = &peerMemory{responses: responses, lane: lane, log: s.log}
	s.memory.refs.Store(1)
	return nil
}

// openRemote connects to a worker of another host.
func (s *session) openRemote(w RemoteWorker) error {
	creds, err := w.TLS.credentials()
	if err != nil {
		return err
	}
	var d net.Dialer
	return s.connect(w.Address, creds, func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", w.Address)
	})
}

// start says hello and begins to read results; ctx ends it all.
func (s *session) start(ctx context.Context, c *Config) error {
	ctx, s.cancel = context.WithCancel(ctx)
	hello, stop := context.WithTimeout(ctx, c.StartTimeout)
	defer stop()
	local := s.memory != nil && !c.UseStream
	var err error
	ask := &workerpb.HelloRequest{Protocol: protocol, GatewayVersion: c.GatewayVersion, InputsRead: true, GoesOn: true}
	if local {
		ask.Lane = []uint32{wire.Table}
	}
	calls := s.worker.owner.calls
	ask.Calls = calls != nil
	s.hello, err = s.client.Hello(hello, ask)
	if err != nil {
		if s.isLost() {
			return fmt.Errorf("hello: %w", s.cause)
		}
		if status.Code(err) == codes.Unimplemented {
			return fmt.Errorf("the worker does not speak protocol %d, as this gateway does; use those of one release: %w", protocol, err)
		}
		return fmt.Errorf("hello: %w", err)
	}
	if s.hello.Protocol != protocol {
		return fmt.Errorf("the worker speaks protocol %d, this gateway %d: use those of one release", s.hello.Protocol, protocol)
	}
	if err := checkHello(s.hello); err != nil {
		return err
	}
	if s.hello.Calls {
		if calls == nil {
			return errors.New("the worker wants to make calls, which was not offered")
		}
		if err := s.startCalls(ctx, calls); err != nil {
			return err
		}
	}
	switch {
	case local && s.hello.Lane == wire.Table:
		if s.desk != nil {
			s.inline = newLaneCalls(s.desk, s.arena, s.memory)
		}
		return s.startLane(c.Ears)
	case s.hello.Lane != 0:
		return fmt.Errorf("the worker wants the local lane's byte table %d, which was not offered", s.hello.Lane)
	}
	return s.startStream(ctx)
}

// startCalls lets models call.
func (s *session) startCalls(ctx context.Context, calls Calls) (err error) {
	s.desk = newDesk(ctx, s.worker, calls, s.fail)
	if s.stream, err = openCalls(ctx, s.client, s.desk, s.budget); err != nil {
		return err
	}
	s.readers.Go(func() { s.fail(s.stream.send()) })
	s.readers.Go(func() { s.fail(s.stream.receive()) })
	return nil
}

// startLane lets results be read, by ears or, where that is nil, by a goroutine.
func (s *session) startLane(ears Ears) error {
	s.memory.session = s
	l := newLaneLink(s.arena, s.memory)
	l.peers = s.peers
	l.calls = s.inline
	s.link = l
	if ears != nil {
		s.readers.Add(1)
		src := &laneSource{laneLink: l, ears: ears, ended: func(err error) {
			if err != nil {
				s.fail(fmt.Errorf("local lane: %w", err))
			}
			s.readers.Done()
		}}
		if err := ears.Attach(s.memory.lane.Bell(), src); err != nil {
			s.readers.Done()
			return fmt.Errorf("local lane: %w", err)
		}
		return nil
	}
	s.readers.Go(func() {
		if err := l.run(); err != nil {
			s.fail(fmt.Errorf("local lane: %w", err))
		}
	})
	return nil
}

func (s *session) startStream(ctx context.Context) error {
	stream, err := s.client.Execute(ctx, grpc.ForceCodecV2(executeCodec{}))
	if err != nil {
		return fmt.Errorf("open the stream of batches: %w", err)
	}
	l := newStreamLink(stream, s.budget)
	s.link = l
	s.readers.Go(func() { s.fail(l.send()) })
	s.readers.Go(func() { s.fail(l.receive()) })
	return nil
}

// watch hands the worker's reports to seen, until ctx ends.
func (s *session) watch(ctx context.Context, c *Config, seen func(*workerpb.WatchResponse)) {
	stream, err := s.client.Watch(ctx, &workerpb.WatchRequest{IntervalMs: c.WatchInterval.Milliseconds()})
	for err == nil {
		var m *workerpb.WatchResponse
		if m, err = stream.Recv(); err == nil {
			s.alive.Store(true)
			seen(m)
		}
	}
	s.fail(fmt.Errorf("watch: %w", err))
}

// healthChecks is how often within the health timeout a worker is asked after. One
// look at its end would kill workers when it was the gateway that stood still. With the
// defaults the looks are together with the reports.
const healthChecks = 5

// guard fails the session when the worker is silent for too long, until ctx ends. look is
// called now and then.
func (s *session) guard(ctx context.Context, c *Config, look func(now int64)) {
	t := tick.New(max(c.HealthTimeout/healthChecks, 1))
	defer t.Stop()
	s.alive.Store(true) // the first look may be an early one
	for missed := 0; missed < healthChecks; {
		select {
		case <-t.C:
			t.Next()
		case <-ctx.Done():
			return
		}
		if missed++; s.alive.Swap(false) {
			missed = 0
		}
		look(infer.Now())
	}
	s.fail(fmt.Errorf("no sign of life for %v", c.HealthTimeout))
}

// own takes a socket that stopReading closes.
func (s *session) own(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(net.ErrClosed, conn.Close())
	}
	s.socket = conn
	return nil
}

// closeSocket comes before gRPC's own closing, which would wait for a peer that does
// not read. Their errors say only that it was closed before.
func (s *session) closeSocket() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.socket != nil {
		_ = s.socket.Close()
	}
	if s.input != nil {
		_ = s.input.Close()
	}
}

// stopReading ends the connection and returns when no result will be delivered any
// more, and nobody sends.
func (s *session) stopReading() {
	s.cancel()
	s.closeSocket()
	if s.conn != nil {
		_ = s.conn.Close() // and waits until nothing reads tensors to be sent
	}
	if s.memory != nil {
		s.memory.lane.Shut()
	}
	s.readers.Wait()
	s.desk.stop()
	s.stream.close()
	s.inline.close()
	close(s.idle)
}

// end waits for the process and the tasks, after stopReading.
func (s *session) end(grace time.Duration) {
	s.tasks.Wait()
	if s.process != nil {
		s.process.end(grace)
	}
	if s.memory != nil {
		s.memory.drop()
	}
	if err := s.regions.close(); err != nil {
		s.log.Error("the socket of regions was not closed", "error", err)
	}
}
