package workers

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/peer"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/region"
	"github.com/sluice-serve/sluice/workers/shm"
)

// connection is one gateway's connection, and what it loaded.
type connection struct {
	net.Conn
	worker *Worker
	local  bool  // inherited: the worker lives as long as it
	lane   *lane // nil: no memory is shared. Set before the first call comes over it
	laneOn atomic.Bool

	tellRead atomic.Bool // the gateway takes word of inputs that are read no more
	goesOn   atomic.Bool // the gateway takes errors that are not a request's last answer

	regions *region.Table // of clients' memory that batches may name
	files   shm.Taker     // their descriptors on the way here
	calls   *calls        // of its models

	once   sync.Once
	mu     sync.Mutex
	models map[uint64]*model // guarded by mu: by handle; also those that are being loaded
	gone   bool              // guarded by mu
}

func newConnection(w *Worker, conn net.Conn, l *lane) *connection {
	c := &connection{Conn: conn, worker: w, lane: l, models: map[uint64]*model{}, regions: region.NewTable()}
	if l != nil {
		l.regions = c.regions
	}
	c.calls = newCalls(c)
	return c
}

// connAddr leads from a call's peer to its connection.
type connAddr struct {
	net.Addr
	conn *connection
}

func connectionOf(ctx context.Context) (*connection, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			return a.conn, nil
		}
	}
	return nil, infer.Errorf(infer.Internal, "the call came over no connection of this worker")
}

// RemoteAddr carries the connection to the calls that come over it.
func (c *connection) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

// Read notes the end of the connection before anybody else acts on it.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.lost()
	}
	return n, err
}

// Close ends the connection, and begins to unload what it loaded.
func (c *connection) Close() error {
	defer c.lost()
	return c.Conn.Close()
}

// lost begins to unload everything, once; the worker waits for it.
func (c *connection) lost() {
	c.once.Do(func() {
		if c.local {
			c.worker.gatewayGone()
		}
		c.mu.Lock()
		c.gone = true
		lane := c.lane
		models := make([]*model, 0, len(c.models))
		for _, m := range c.models {
			models = append(models, m)
		}
		c.mu.Unlock()
		if lane != nil {
			lane.shut()
		}
		c.calls.end()
		for _, m := range models {
			m.beginUnload(c)
		}
		if !c.local {
			c.worker.running.Go(func() { c.unmap(models) })
		} else {
			c.closeRegions()
		}
		c.worker.forget(c)
	})
}

// drain frees what the gateway has given back on the lane.
func (c *connection) drain() {
	if c.laneOn.Load() {
		c.lane.drain()
	}
}

// closeRegions lets go of clients' memory; what a batch uses, it frees.
func (c *connection) closeRegions() {
	c.regions.CloseAll()
	if err := c.files.Close(); err != nil {
		c.worker.log.Error("descriptors of shared memory regions were not closed", "error", err)
	}
}

// unmap gives the shared memory back once no instance uses it any more.
func (c *connection) unmap(models []*model) {
	c.closeRegions()
	for _, m := range models {
		<-m.stopped
	}
	if c.lane == nil {
		return
	}
	if err := errors.Join(c.lane.unpin(), c.lane.Close()); err != nil {
		c.worker.log.Error("the memory shared with a gateway was not given back", "error", err)
	}
}

// corrupt is called when the gateway wrote what can't be decoded.
func (c *connection) corrupt(err error) {
	if c.local {
		c.worker.corrupt(err)
		return
	}
	c.worker.log.Error("a gateway wrote a batch that makes no sense; its connection ends", "error", err)
	_ = c.Close() // it may be closed already
}

// share gives the connection memory of its gateway's; false: it has ended.
func (c *connection) share(l *lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		l.regions = c.regions
		c.lane = l
	}
	return !c.gone
}

func (c *connection) add(ctx context.Context, m *model) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// An unload of this load may have been answered already: each call has a goroutine of its own. It comes after
	// the end of the load's context, and the gateway has given the mailboxes to others since.
	if ctx.Err() != nil {
		return infer.Errorf(infer.Cancelled, "the load was given up: %w", context.Cause(ctx))
	}
	if c.gone {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the connection has ended")
	}
	if c.models[m.handle] != nil {
		return infer.Errorf(infer.AlreadyExists, "handle %d is in use", m.handle)
	}
	c.models[m.handle] = m
	return nil
}

func (c *connection) remove(m *model) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.models, m.handle)
}

// find is the model of a handle that is loaded.
func (c *connection) find(handle uint64) (*model, error) {
	c.mu.Lock()
	m := c.models[handle]
	c.mu.Unlock()
	if m == nil {
		return nil, infer.Errorf(infer.NotFound, "no model has handle %d", handle)
	}
	return m, nil
}

// queueOf is where batches of an instance go that come by the stream.
func (c *connection) queueOf(handle uint64, instance uint32) (*queue, error) {
	m, err := c.find(handle)
	if err != nil {
		return nil, err
	}
	select {
	case <-m.ready:
	default:
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "the model of handle %d is being loaded", handle)
	}
	if int64(instance) >= int64(len(m.queues)) || m.queues[instance] == nil {
		return nil, infer.Errorf(infer.InvalidArg, "the model of handle %d has no instance %d on this stream", handle, instance)
	}
	return m.queues[instance], nil
}

func (c *connection) newTransport(mailbox uint32) (transport, error) {
	if c.laneOn.Load() {
		return c.lane.newTransport(mailbox)
	}
	return newQueue(int64(c.worker.config.MaxMessage)), nil
}

// listener hands out connections that know their models.
type listener struct {
	net.Listener
	worker *Worker
}

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := newConnection(l.worker, conn, nil)
	l.worker.remember(c)
	return c, nil
}

// single is a listener with one connection, the inherited one.
type single struct {
	conn   chan net.Conn
	addr   net.Addr
	closed chan struct{}
	once   sync.Once
}

func newSingle(conn net.Conn) *single {
	s := &single{conn: make(chan net.Conn, 1), addr: conn.LocalAddr(), closed: make(chan struct{})}
	s.conn <- conn
	return s
}

func (s *single) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conn:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *single) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *single) Addr() net.Addr { return s.addr }
