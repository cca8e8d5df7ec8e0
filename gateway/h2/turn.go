package h2

import (
	"errors"
	"net"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// A connection whose calls are small is read by a loop, without a goroutine of its own: it
// is parked. Whatever takes long, or has to wait, gives it its goroutine again: a large
// frame, a peer that takes no answers, the connection's end. One of a Unix socket is never
// parked: with its bytes descriptors may come, which the kernel closes in the read that drops
// them, and that takes as long as the peer likes (see listen's bound of such connections).

// settledAfter is after how many small calls in a row a connection is parked. One that had
// a large message or answer has to make more of them.
const (
	settledAfter = 4
	heavy        = -64
)

// turnReads is how often a turn reads before others have theirs.
const turnReads = 4

// What takes longer is for a goroutine: all that is served of one reading, and a frame of it on
// the average. Tokens that must be verified take so long, and a reading full of the smallest
// calls.
const (
	turnTime  = 1_000_000 // ns
	frameTime = 200_000   // ns
	lookEvery = 16        // frames

	slowFrames = 128 // between one that took long and the next that counts
)

// errRests is serve's end of a connection that is parked.
var errRests = errors.New("h2: parked")

// errFault ends a connection that met a fault of ours.
var errFault = errors.New("h2: internal fault")

// comes is what epoll is to tell of a parked connection, once each time.
const comes = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

// park leaves the connection to the loop. The reading goroutine calls it between frames,
// when it has used up what it has read, and ends when it is told true.
func (c *conn) park() bool {
	if c.at == nil || c.bound || c.caller.unix || c.taker == nil || c.r != c.w || c.blockHead.length > 0 || c.kicked || c.unread {
		return false
	}
	c.mu.Lock()
	settled := c.small >= c.s.settled
	c.mu.Unlock()
	if !settled {
		return false
	}
	if c.news {
		c.news = false
		c.Flush()
	}
	c.burst.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready || c.ended != nil || c.draining || c.kicks || c.flushing || len(c.sending) > 0 || !c.out.empty() {
		return false
	}
	fd, err := listen.Bare(c.nc)
	if err != nil {
		c.bound = true // nothing was changed
		return false
	}
	c.fd, c.nc, c.try, c.taker = fd, nil, nil, nil
	c.id = c.at.Register(c)
	c.gather = c.at.Burst()
	c.buf, c.r, c.w = nil, 0, 0
	if c.at.Control(unix.EPOLL_CTL_ADD, fd, c.id, comes) != nil {
		c.dressLocked()
		c.buf, c.bound = make([]byte, readBuffer), true
		return false
	}
	return true
}

// driveLocked gives a parked connection its goroutine: at once, or when the loop's turn and
// the write to its bare socket are over.
func (c *conn) driveLocked() {
	if c.fd < 0 {
		return
	}
	if c.due = c.turning || c.bare; c.due {
		return
	}
	c.dressLocked()
	c.s.conns.Resume(c, (*conn).serve)
	c.at.Burst().Woke()
}

// dressLocked gives it its net.Conn again.
func (c *conn) dressLocked() {
	c.at.Forget(c.id)
	_ = c.at.Control(unix.EPOLL_CTL_DEL, c.fd, 0, 0) // it is in the set
	c.nc, c.outer = listen.Redress(c.fd, c.slot, c.s.deps.Log)
	c.fd, c.gather = -1, &c.burst
	c.try, c.taker = listen.NewTrier(c.nc), listen.NewTaker(c.nc, c.burst.Close)
	c.room.Broadcast()
}

// solid is the connection's net.Conn, for who may wait. Where it is parked it gets its
// goroutine again.
func (c *conn) solid() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.small = heavy
	for c.fd >= 0 {
		if c.driveLocked(); c.fd >= 0 {
			c.waitLocked()
		}
	}
	return c.nc
}

// Event is loop.Handler's: a turn of a parked connection.
func (c *conn) Event(events uint32, buf []byte) {
	c.mu.Lock()
	c.turning = c.fd >= 0
	mine := c.turning
	c.mu.Unlock()
	if !mine {
		return
	}
	drive := true
	defer func() { c.turned(drive, recover()) }()
	for range turnReads {
		full, over := c.visit(buf)
		if over {
			return
		}
		if !full {
			drive = events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
			return
		}
	}
	drive = c.at.Control(unix.EPOLL_CTL_MOD, c.fd, c.id, comes) != nil // it tells of the rest
}

// visit reads once and takes the frames that are complete. full: there may be more to
// read. over: the connection is the goroutine's.
func (c *conn) visit(buf []byte) (full, over bool) {
	if c.buf == nil {
		c.buf, c.r, c.w = buf, 0, 0
	}
	n, err := listen.Receive(c.fd, c.buf[c.w:])
	if c.w += n; n > 0 {
		c.heard.Store(infer.Now())
	}
	full = c.w == len(c.buf)
	over = err != nil // the goroutine meets it again
	first := c.frames
	for !over && c.w-c.r >= frameHeader {
		h := parseHead(c.buf[c.r:])
		if over = frameHeader+h.length > readBuffer; over || frameHeader+h.length > c.w-c.r {
			break
		}
		if err := c.next(); err != nil {
			c.fault, over = err, true
			break
		}
		over = c.outgrown() || (c.frames-first)%lookEvery == 0 && c.takesLong(first)
	}
	c.inFrame = false
	if !over {
		c.settle()
		over = c.frames != first && c.takesLong(first)
	}
	if c.news {
		c.news = false
		c.Flush()
	}
	c.keep(buf)
	return full, over
}

// takesLong says that what was just read, since a frame, holds up others of the loop, and not
// for the first time of late: once it may have waited for a processor. Then the connection has
// a goroutine for some time.
func (c *conn) takesLong(first uint) bool {
	most := min(c.s.turnTime, c.s.turnTime/(turnTime/frameTime)*int64(c.frames-first))
	if c.slowAt > first { // of the same reading
		most += c.s.turnTime
	}
	if infer.Now()-c.heard.Load() < most {
		return false
	}
	before := c.slowAt
	if c.slowAt = c.frames; before == 0 || c.frames-before > slowFrames {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.small = heavy
	return true
}

// outgrown says that the connection should have its goroutine again.
func (c *conn) outgrown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.small < 0 || c.due || c.ended != nil || len(c.out.small) > backlog
}

// keep takes what was not used up out of the loop's buffer.
func (c *conn) keep(buf []byte) {
	switch {
	case c.r == c.w:
		c.buf, c.r, c.w = nil, 0, 0
	case &c.buf[0] == &buf[0]:
		own := make([]byte, readBuffer)
		c.w = copy(own, c.buf[c.r:c.w])
		c.buf, c.r = own, 0
	case c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
}

// turned ends a turn.
func (c *conn) turned(drive bool, fault any) {
	if fault != nil {
		go c.s.deps.Log.Error("gRPC: a connection is given up", "panic", fault, "stack", string(debug.Stack()))
		c.fault, c.buf, c.r, c.w = errFault, nil, 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turning = false
	if drive || c.due || c.ended != nil {
		c.driveLocked()
	}
}

// bareDoneLocked ends a write to the bare socket.
func (c *conn) bareDoneLocked() {
	c.bare = false
	if c.due {
		c.driveLocked()
	}
}

// again is serve's begin of a connection that was parked: what ended its reading, or nil.
func (c *conn) again() error {
	if c.buf == nil {
		c.buf = make([]byte, readBuffer)
	}
	c.unread = true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.small = min(c.small, 0)
	if c.ended != nil {
		return c.ended
	}
	return c.fault
}

var _ loop.Handler = (*conn)(nil)
