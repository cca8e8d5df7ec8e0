package h1

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/tick"
)

// Config bounds a Server. All fields but Loops and Scarce must be set: a zero is a limit of
// nothing.
type Config struct {
	MaxHeaderBytes    int           // of a request's head; above it the connection goes to the other server
	ReadHeaderTimeout time.Duration // for a head, from its first byte on
	IdleTimeout       time.Duration // between requests
	BodyTimeout       time.Duration // a body may take so long, and a second for each MinRate bytes
	MinRate           int64         // bytes a second
	Loops             []*loop.Loop  // read resting connections; none: the server makes its own
	// Scarce says that memory of requests or answers runs out: then a client that takes
	// nothing of its answer is cut off soon. It must not block. nil: it never does.
	Scarce func() bool
	// Descriptors may close connections that rest for new ones; nil: never.
	Descriptors *listen.Descriptors
}

// Handler answers requests.
type Handler interface {
	// Light says that Serve of r, of which the body was not read, will not wait when all of
	// it has come: such requests are served by the goroutine that watches all resting
	// connections. It must not block. Other requests are served by a goroutine of their
	// connection.
	Light(r *Request) bool
	// Serve answers one request, whose Answer is empty. With later it has only begun to: the
	// answer stands in a when a's Done is called, once, by any goroutine and maybe before
	// Serve returns. It reads what it wants of the body before it returns. ctx ends when
	// the client has gone. The request is valid until it returns, or until Done is called.
	Serve(ctx context.Context, r *Request, a *Answer) (later bool)
	// Written is called when the answer of a Serve was written or can't be; what stands
	// under its chunks may then be used again. It must not block.
	Written(a *Answer)
}

// Request is one request as it was sent.
type Request struct {
	Method string // GET or POST
	Path   string // percent-encoded, without the query
	Fields []Field
	Body   *Body
	Length int64 // bytes of the body; -1: unknown
	Remote netip.AddrPort
	Unix   bool
	Peer   infer.Peer
	// Inline says that who serves it serves others too, and must not wait: its body has
	// come, and Light has said that it can be answered so.
	Inline bool
	// Burst is what it was read in, where it is Inline.
	Burst *loop.Burst
	// Passing has a descriptor that came with the request; nil: it came over no Unix socket.
	Passing *listen.Passing
}

// Get is the first value of a field by its name in any case; "" where there is none.
func (r *Request) Get(name string) string {
	if i := r.index(name); i >= 0 {
		return r.Fields[i].Value
	}
	return ""
}

// Has says that there is a field of the name.
func (r *Request) Has(name string) bool { return r.index(name) >= 0 }

// Count is how many fields have the name.
func (r *Request) Count(name string) (n int) {
	for i := range r.Fields {
		if equalFold(r.Fields[i].Name, name) {
			n++
		}
	}
	return n
}

func (r *Request) index(name string) int {
	for i := range r.Fields {
		if equalFold(r.Fields[i].Name, name) {
			return i
		}
	}
	return -1
}

// Field is one field of a head. Its name is spelled as it was sent.
type Field struct{ Name, Value string }

// Answer is what a handler says. Content-Length, Date and Connection are the
// transport's.
type Answer struct {
	Status int
	Fields []Field
	Chunks [][]byte // the body; they are not copied unless they are small
	Length int64    // of the chunks together
	// Source, where it is not nil, is the body in place of Chunks, piece by piece and chunked on the wire; Length is
	// then about how much memory the body holds.
	Source Source
	Owner  any // for the handler

	c        *conn
	streamed bool // Begin was called
	last     bool // and nothing follows on the connection
}

// Source makes a body as it is written.
type Source interface {
	// Next gives the next piece, which is valid until it is called again; an empty one is the end. It must not block.
	Next() []byte
}

// Server serves connections that come from Listeners.
type Server struct {
	cfg     Config
	handler Handler
	log     *slog.Logger
	few     int64 // so many connections have goroutines of their own, and rest in Go's poller
	open    atomic.Int64
	conns   *listen.Accepted[*conn]
	date    atomic.Pointer[[]byte] // the Date field of this second

	turnTime               int64         // turnTime, but in tests
	patience               int64         // listen.Patience, but in tests
	lingerIdle, lingerTime time.Duration // the constants, but in tests
	looks                  listen.Looks  // of the clock's goroutine: that are left since memory was scarce last

	buffers sync.Pool // *[turnBuffer]byte, for turns that the watcher does not take

	mu      sync.Mutex
	loops   []*loop.Loop // Config's, or own
	own     []*loop.Loop // made by the first Serve, where Config has none
	next    int          // of the loops
	begun   bool
	ticks   chan struct{}
	ticking sync.WaitGroup
	stopped bool
}

// New makes a server; nothing runs before Serve.
func New(cfg Config, handler Handler, log *slog.Logger) *Server {
	s := &Server{cfg: cfg, handler: handler, log: log, few: atFew(runtime.GOMAXPROCS(0), len(cfg.Loops) > 0),
		loops: cfg.Loops, ticks: make(chan struct{}), turnTime: turnTime, patience: listen.Patience,
		lingerIdle: lingerIdle, lingerTime: lingerTime, conns: listen.NewAccepted[*conn](log)}
	cfg.Descriptors.Add(s.resting)
	s.tick(time.Now())
	return s
}

// begin starts what runs beside the connections, with the first listener. False: the server has stopped.
func (s *Server) begin() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.begun {
		return !s.stopped, nil
	}
	if len(s.loops) == 0 {
		for range max(1, loop.Count(runtime.GOMAXPROCS(0))) {
			l, err := loop.New(s.log, s.own...)
			if err != nil {
				return false, err // Close ends the others
			}
			s.own = append(s.own, l)
		}
		s.loops = s.own
	}
	s.begun = true
	s.ticking.Go(s.clock)
	return true, nil
}

// clock calls tick until the server is closed.
func (s *Server) clock() {
	t := tick.New(time.Second)
	defer t.Stop()
	for {
		select {
		case at := <-t.C:
			s.tick(at)
			t.Next()
		case <-s.ticks:
			return
		}
	}
}

// few connections don't give the watcher several at a time, and it and who reads results
// would take turns: a wake-up more for each request.
const few = 4

// atFew is Server.few where so many processors run goroutines. Where one does, no connection
// is left to the watcher: its wait in the kernel keeps the processor until Go's monitor
// takes it back, which is a millisecond and more for each request. Where the watcher reads
// results too, none needs a goroutine.
func atFew(processors int, shared bool) int64 {
	switch {
	case processors == 1:
		return math.MaxInt64
	case shared:
		return 0
	}
	return few
}

// watcher is the one for the next connection.
func (s *Server) watcher() watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.loops) == 0 {
		return watcher{}
	}
	s.next++
	return watcher{s.loops[s.next%len(s.loops)]}
}

// Serve accepts connections until Shutdown or Close, which make it return nil, or until
// the listener fails. It closes the listener. What is not for this server goes to other.
func (s *Server) Serve(l net.Listener, other *Handoff) error {
	if ok, err := s.begin(); !ok {
		if closed := l.Close(); !errors.Is(closed, net.ErrClosed) { // by who stopped the server
			err = errors.Join(err, closed)
		}
		return err
	}
	return s.conns.Serve(l, func(nc net.Conn) *conn { return newConn(s, nc, other) }, (*conn).serve)
}

// Shutdown accepts no connection any more, closes idle ones, and lets the others finish
// the request they are at, until ctx ends; then it cuts them off and returns ctx's
// error. No goroutine of the server is left when it returns.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.conns.Stop() {
		c.hurry()
	}
	var err error
	select {
	case <-s.conns.None():
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.Close()
	return err
}

// Close ends everything at once.
func (s *Server) Close() {
	for _, c := range s.conns.Stop() {
		c.cut()
	}
	s.conns.Wait()
	s.mu.Lock()
	begun, stopped, own := s.begun, s.stopped, s.own
	s.stopped, s.own, s.loops = true, nil, nil
	s.mu.Unlock()
	if begun && !stopped {
		close(s.ticks)
	}
	s.ticking.Wait()
	for _, l := range own {
		if err := l.Close(); err != nil {
			s.log.Error("HTTP: a loop was not closed", "error", err)
		}
	}
}

// tick comes once a second: it renews the date and looks for what takes
// too long.
func (s *Server) tick(at time.Time) {
	date := at.UTC().AppendFormat(nil, "Date: Mon, 02 Jan 2006 15:04:05 GMT\r\n")
	s.date.Store(&date)
	now := infer.Now()
	for _, c := range s.conns.All() {
		c.check(now)
	}
	s.relieve(now)
}

// Handoff is a net.Listener for another server, which accepts from it the connections
// that are not for this one.
type Handoff struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewHandoff makes one that says it listens on addr.
func NewHandoff(addr net.Addr) *Handoff {
	return &Handoff{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept is net.Listener's.
func (h *Handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (h *Handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr is net.Listener's.
func (h *Handoff) Addr() net.Addr { return h.addr }

// give hands a connection over; it is closed where nobody accepts any more.
func (h *Handoff) give(nc net.Conn) {
	select {
	case h.conns <- nc:
	case <-h.done:
		_ = nc.Close() // the other server has stopped
	}
}

// replay is a connection of which a part was read already.
type replay struct {
	net.Conn
	read []byte
}

// Read gives what was read, then reads on.
func (r *replay) Read(p []byte) (int, error) {
	if len(r.read) > 0 {
		n := copy(p, r.read)
		if r.read = r.read[n:]; len(r.read) == 0 {
			r.read = nil // and with it the buffer
		}
		return n, nil
	}
	return r.Conn.Read(p)
}
