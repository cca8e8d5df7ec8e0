package h2

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// Server is a gRPC server. Make it with New, add services, then call Serve for each
// listener; Shutdown ends it.
type Server struct {
	cfg      Config
	deps     Deps
	methods  map[string]*method // by path; not changed once Serve was called
	services map[string]grpc.ServiceInfo
	known    map[string]struct{} // services, also those of Deps.Methods alone

	compressed *CountedPool // messages

	quiet   atomic.Int64 // calls on goroutines that wait for their first message
	crew    crew
	started sync.WaitGroup // calls that outlive their connection, until their answer
	conns   *listen.Accepted[*conn]
	next    atomic.Uint64 // of the loops
	settled int           // so many small calls in a row park a connection

	turnTime int64 // turnTime, but in tests
	relief   relief
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// New makes a server without services.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Memory == nil || deps.Codec == nil || deps.Log == nil {
		return nil, infer.Errorf(infer.Internal, "h2: a server needs memory, a codec and a log")
	}
	s := &Server{cfg: cfg, deps: deps, compressed: &CountedPool{Budget: deps.Responses}, methods: map[string]*method{},
		services: map[string]grpc.ServiceInfo{}, known: map[string]struct{}{},
		conns: listen.NewAccepted[*conn](deps.Log), settled: settledAfter, turnTime: turnTime,
		relief: relief{patience: listen.Patience, every: lookPeriod, ended: make(chan struct{})}}
	for path, m := range deps.Methods {
		s.handle(path, m)
	}
	cfg.Descriptors.Add(s.resting)
	return s, nil
}

// handle makes a Method answer the calls of a path.
func (s *Server) handle(path string, m Method) {
	s.methods[path] = &method{name: path, hot: m}
	if service, _, ok := cutLast(strings.TrimPrefix(path, "/")); ok {
		s.known[service] = struct{}{}
	}
}

// RegisterService is grpc.ServiceRegistrar's. As there, a service that does not
// implement its interface is a bug that ends the program.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if impl != nil && desc.HandlerType != nil {
		if want := reflect.TypeOf(desc.HandlerType).Elem(); !reflect.TypeOf(impl).Implements(want) {
			panic("h2: " + reflect.TypeOf(impl).String() + " does not implement " + want.String())
		}
	}
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	add := func(name string, r *registered, client, server bool) {
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: name, IsClientStream: client, IsServerStream: server})
		path := "/" + desc.ServiceName + "/" + name
		if m := s.methods[path]; m == nil || m.hot == nil {
			s.methods[path] = &method{name: path, served: r}
		}
	}
	for i := range desc.Methods {
		d := &desc.Methods[i]
		add(d.MethodName, &registered{impl: impl, unary: d.Handler}, false, false)
	}
	for i := range desc.Streams {
		d := &desc.Streams[i]
		add(d.StreamName, &registered{impl: impl, stream: d.Handler}, d.ClientStreams, d.ServerStreams)
	}
	s.services[desc.ServiceName] = info
	s.known[desc.ServiceName] = struct{}{}
}

// GetServiceInfo lists the services, as reflection wants it.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.services }

// loop is the one for the next connection; nil: there is none.
func (s *Server) loop() *loop.Loop {
	if len(s.cfg.Loops) == 0 {
		return nil
	}
	return s.cfg.Loops[s.next.Add(1)%uint64(len(s.cfg.Loops))]
}

// Serve accepts connections until Shutdown, which makes it return nil, or until the
// listener fails. It closes the listener.
func (s *Server) Serve(l net.Listener) error {
	s.relieve()
	return s.conns.Serve(l, func(nc net.Conn) *conn { return newConn(s, nc) }, (*conn).serve)
}

// Shutdown accepts no connection any more, tells every client to open no further call
// (GOAWAY), waits for the calls in flight until ctx ends, and then cuts them off and
// returns ctx's error. No goroutine of the server is left when it returns.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.conns.Stop() {
		c.drain()
	}
	var err error
	select {
	case <-s.conns.None():
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.Stop()
	return err
}

// Stop accepts no connection any more and ends all that there are at once. No goroutine
// of the server is left when it returns.
func (s *Server) Stop() {
	for _, c := range s.conns.Stop() {
		c.close(errStopped)
	}
	s.relief.stop()
	s.conns.Wait()
	s.crew.stop()
	s.started.Wait()
}

var errStopped = errors.New("h2: the server stopped")

// crew are the goroutines that calls run on. They are kept for the next call, so that
// its stack has grown already.
type crew struct {
	mu    sync.Mutex
	idle  []chan *Stream // the last one is the next one used
	low   int            // the fewest that were idle since trim looked
	trims *time.Timer    // nil: few are idle
	ended bool
	hands sync.WaitGroup
}

// maxIdle bounds the goroutines that are kept; those above keptIdle that trimEvery saw
// idle all along end.
const (
	maxIdle   = 1024
	keptIdle  = 16
	trimEvery = 5 * time.Second
)

// run runs a call on a goroutine of its own.
func (w *crew) run(st *Stream) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		ch := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.low = min(w.low, n-1)
		w.mu.Unlock()
		ch <- st
		return
	}
	w.hands.Add(1)
	w.mu.Unlock()
	go w.hand(st)
}

func (w *crew) hand(st *Stream) {
	defer w.hands.Done()
	ch := make(chan *Stream, 1)
	for st != nil {
		st.run()
		w.mu.Lock()
		if w.ended || len(w.idle) >= maxIdle {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, ch)
		if w.trims == nil && len(w.idle) > keptIdle {
			w.low = 0 // some were in use a moment ago
			w.trims = time.AfterFunc(trimEvery, w.trim)
		}
		w.mu.Unlock()
		st = <-ch
	}
}

// trim ends those that nobody needed since it looked, and looks again while many are left.
func (w *crew) trim() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if n := min(w.low, len(w.idle)-keptIdle); n > 0 {
		for _, ch := range w.idle[:n] {
			ch <- nil // it has room, and its goroutine waits
		}
		w.idle = append(w.idle[:0], w.idle[n:]...)
		clear(w.idle[len(w.idle):cap(w.idle)])
	}
	w.low, w.trims = len(w.idle), nil
	if w.low > keptIdle {
		w.trims = time.AfterFunc(trimEvery, w.trim)
	}
}

// stop ends the idle ones and waits for all.
func (w *crew) stop() {
	w.mu.Lock()
	w.ended = true
	if w.trims != nil {
		w.trims.Stop()
	}
	for _, ch := range w.idle {
		ch <- nil
	}
	w.idle = nil
	w.mu.Unlock()
	w.hands.Wait()
}
