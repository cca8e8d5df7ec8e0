package h1

import (
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// place is who reads a connection.
type place uint8

const (
	driven  place = iota // a goroutine of its own, serve
	parked               // nobody, until something comes; then the watcher
	turning              // the watcher is at it
)

const (
	// turnBuffer is what the watcher reads at once, for all connections.
	turnBuffer = loop.Buffer
	// turnBody is the largest body that is served by the watcher: decoding takes time.
	turnBody = 16 << 10
	// turnMost is how many pipelined requests of a connection it serves at a time.
	turnMost = 8
	// turnTime is what one of them may take, in ns. After two longer ones among slowly many, as
	// where tokens must be verified, as many requests have a goroutine. One alone may have
	// waited for a processor.
	turnTime = 1_000_000
	slowly   = 64
)

// simple says that the request whose head of so many bytes was parsed may be served by
// the watcher, as far as the transport is concerned.
func (c *conn) simple(head int) bool {
	h := &c.parsed
	return !h.refuse && !h.chunked && !h.expect && !h.close && h.length <= turnBody && int64(head)+h.length <= turnBuffer
}

// parks says that the connection may be parked once its answer is written. One that
// descriptors may come over is not: they must be taken with the bytes that they come with.
func (c *conn) parks() bool {
	return c.small && c.slow == 0 && c.r == c.w && c.id != 0 && c.req.Passing == nil && c.s.open.Load() > c.s.few
}

// park leaves the connection to the watcher, until something comes that takes a goroutine.
// Its goroutine calls it when no request is pending; it ends when it is told true.
func (c *conn) park() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.gone {
		return false
	}
	c.enter(idle)
	c.eye.unwatch(c)
	fd, err := listen.Bare(c.nc)
	if err != nil {
		c.eye.watch(c) // where it fails, its client's leaving shows later
		return false
	}
	c.fd, c.nc, c.try = fd, nil, nil
	if c.eye.at.Control(unix.EPOLL_CTL_ADD, fd, c.id, comes) != nil {
		c.dressLocked()
		return false
	}
	c.buf, c.r, c.w = nil, 0, 0
	c.large = cap(c.out) > firstBuffer
	c.place = parked
	return true
}

// driveLocked gives a connection that is parked, or whose turn ends, a goroutine: at once,
// or when nobody writes to the descriptor any more.
func (c *conn) driveLocked() {
	if c.fd >= 0 && c.trying {
		c.due, c.place = true, turning
		return
	}
	c.due = false
	if c.fd >= 0 {
		c.dressLocked()
	}
	c.place, c.async = driven, true
	if c.closing && !c.pending {
		c.deadline(time.Now().Add(restTime))
	}
	c.s.conns.Resume(c, (*conn).serve)
	c.eye.at.Burst().Woke()
}

// dressLocked gives a connection its net.Conn again. Where that fails it is at its end.
func (c *conn) dressLocked() {
	_ = c.eye.at.Control(unix.EPOLL_CTL_DEL, c.fd, 0, 0) // it is in the set
	c.knocked = false
	nc, outer := listen.Redress(c.fd, c.slot, c.s.log)
	c.fd, c.nc, c.outer, c.try = -1, nc, outer, listen.NewTrier(nc)
	c.eye.watch(c)
}

// visit is a turn, the watcher's or of who has written an answer: it reads what has come on a
// parked connection into b, and serves what can be served without waiting. leaves is that
// its client sends nothing more, of which epoll tells once: a turn that reads a last request
// asks to be told again. False: the connection is driven.
func (c *conn) visit(b []byte, leaves bool) bool {
	c.mu.Lock()
	c.leaves = c.leaves || leaves
	switch {
	case c.place == driven:
		c.mu.Unlock()
		return false
	case c.place == turning: // of another goroutine, which may have read before this came
		c.knocked = true
		c.mu.Unlock()
		return true
	case c.trying: // the client was fast: who writes has not let go of the request yet
		c.knocked = true
		c.mu.Unlock()
		return true
	case c.pending: // a client that pipelines, or leaves
		c.driveLocked()
		c.mu.Unlock()
		return true
	}
	c.place, c.async, c.knocked = turning, false, c.leaves
	c.mu.Unlock()
	defer c.turned()
	n, err := listen.Receive(c.fd, b)
	if n == 0 && err == nil {
		return true
	}
	c.buf, c.r, c.w = b, 0, n
	if n == 0 || n == len(b) || !c.inline() {
		c.keep()
	}
	return true
}

// keep takes what was read and not used up out of the watcher's buffer; then the
// connection is not parked when its turn ends.
func (c *conn) keep() {
	rest := c.buf[c.r:c.w]
	size := firstBuffer
	if len(rest) >= size {
		size = readBuffer
	}
	c.buf = make([]byte, max(size, len(rest)))
	c.r, c.w = 0, copy(c.buf, rest)
}

// turned ends a turn.
func (c *conn) turned() {
	p := recover()
	if p != nil {
		go c.s.log.Error("HTTP: a connection is given up", "panic", p, "stack", string(debug.Stack()))
		c.cut()
		c.keep()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p != nil { // nobody else has the request, so that who wrote is this
		c.pending, c.trying = false, false
	}
	if c.buf != nil || c.slow > 0 || c.nc != nil || c.failed != nil || c.gone || c.closing && !c.pending {
		c.driveLocked()
		return
	}
	c.place = parked
	c.openLocked()
}

// openLocked lets the watcher hear again of what has come while an answer was written.
func (c *conn) openLocked() {
	if c.knocked && !c.trying {
		c.knocked = false
		_ = c.eye.at.Control(unix.EPOLL_CTL_MOD, c.fd, c.id, comes) // it is in the set
	}
}

// inline serves what stands in the buffer, and says that all of it was: then the buffer is
// let go. What it does not serve is as it was.
func (c *conn) inline() bool {
	for range turnMost {
		c.skipLines()
		if c.used {
			return false
		}
		var lines lineScanner
		head, usual := lines.scan(c.buf[c.r:c.w])
		if !usual || head == 0 || head > c.s.cfg.MaxHeaderBytes || !c.parse(c.buf[c.r:c.r+head]) ||
			!c.simple(head) || int64(c.w-c.r-head) < c.parsed.length || !c.s.handler.Light(&c.req) {
			return false
		}
		c.r += head
		c.used, c.posted = true, c.req.Method == "POST"
		ctx := c.open()
		c.req.Inline, c.req.Burst = true, c.eye.at.Burst()
		began := infer.Now()
		later := c.s.handler.Serve(ctx, &c.req, &c.ans)
		c.timed(infer.Now() - began)
		c.r += int(c.body.left) // what its handler did not want
		c.body.left, c.body.done = 0, true
		if c.r == c.w {
			c.buf, c.r, c.w = nil, 0, 0
		}
		if !c.concluded(later) {
			return c.buf == nil
		}
		if c.buf == nil {
			return true
		}
	}
	return false
}

// timed takes down how long an inline request took.
func (c *conn) timed(took int64) {
	c.late = max(c.late-1, 0)
	if took <= c.s.turnTime {
		return
	}
	if c.late > 0 {
		c.slow = slowly
	}
	c.late = slowly
}

// concluded writes the answer of a request that was served inline, if it is there. False:
// it was not written yet, or nothing can follow it.
func (c *conn) concluded(later bool) bool {
	c.mu.Lock()
	c.pending, c.large = true, false
	later = later && c.stage.CompareAndSwap(starting, waiting)
	c.mu.Unlock()
	if later {
		return false
	}
	c.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.pending && c.failed == nil
}
