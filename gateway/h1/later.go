package h1

import (
	"context"
	"net"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
)

// What a request that is served is at. Whoever answers it tells by this whether the
// connection's goroutine is about to look for the answer.
const (
	starting uint32 = iota // Serve runs
	waiting                // the goroutine reads on: who answers writes
	answered
)

// Done says that the answer of a Serve which said later stands in a. What it returns is to
// be flushed by who calls it; nil: the connection's goroutine is about to write.
func (a *Answer) Done() infer.Flusher {
	c := a.c
	if c.stage.Swap(answered) == waiting {
		return c
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting {
		c.news.Signal()
	}
	return nil
}

// answeredYet is called when a Serve has said later. False: the goroutine may read on.
// Where it can't, since the body was not read or nothing follows, it waits for the answer.
func (c *conn) answeredYet() bool {
	if !c.body.done || c.close {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting = true
		for c.stage.Load() != answered {
			c.news.Wait()
		}
		c.waiting = false
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = c.stage.CompareAndSwap(starting, waiting)
	c.async, c.large = c.pending, cap(c.buf) > firstBuffer // which does not grow before it is answered
	return !c.pending
}

// settled waits for the answer of a request that is pending, if there is one, to be
// written. Its error is that of the connection.
func (c *conn) settled() error {
	if !c.async {
		return nil
	}
	c.async = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = true
	for c.pending {
		c.news.Wait()
	}
	c.waiting = false
	err := c.failed
	c.failed = nil
	return err
}

// Flush is infer.Flusher's: it writes the answer of the pending request without blocking.
// What the socket does not take is left to a goroutine.
func (c *conn) Flush() {
	c.mu.Lock() // answeredYet has told that it is pending
	ctx, try, fd := c.current, c.try, c.fd
	c.trying = true
	c.mu.Unlock()
	ctx.End(context.Canceled)
	a, last := &c.ans, c.isLast()
	if a.Source != nil {
		c.enter(writing)
		c.aside(func() { c.wrote(c.writeSource(a, last), last) })
		return
	}
	c.appendHead(a, last)
	size := len(c.out) + int(a.Length)
	if a.Length <= coalesce {
		for _, chunk := range a.Chunks {
			c.out = append(c.out, chunk...)
		}
		c.bufs = append(c.bufs[:0], c.out)
	} else {
		c.bufs = append(append(c.bufs[:0], c.out), a.Chunks...)
	}
	c.enter(writing)
	c.moved.Store(a.Length)
	begin, ok := c.eye.at.Takes(size)
	if fd < 0 && try == nil || !ok {
		c.writeOn(c.bufs, last)
		return
	}
	var n int
	var err error
	if fd >= 0 {
		n, err = listen.Send(fd, c.bufs...)
	} else {
		n, err = try.Write(c.bufs...)
	}
	c.eye.at.Took(begin)
	if err == nil && n < size {
		c.writeOn(listen.Rest(c.bufs, n), last)
		return
	}
	c.wrote(err, last)
}

// writeOn is writeRest on a goroutine.
func (c *conn) writeOn(rest net.Buffers, last bool) {
	c.aside(func() { c.writeRest(rest, last) })
}

// aside runs write, which may block, on a goroutine of its own, and has the connection a net.Conn for it.
func (c *conn) aside(write func()) {
	c.mu.Lock()
	c.trying = false
	switch {
	case c.place == parked || c.due:
		c.driveLocked()
	case c.fd >= 0: // the watcher drives it when it has done
		c.dressLocked()
	}
	c.mu.Unlock()
	go write()
	c.eye.at.Burst().Woke()
}

// writeRest writes what the socket did not take at once.
func (c *conn) writeRest(rest net.Buffers, last bool) {
	_, err := rest.WriteTo(c.nc)
	c.wrote(err, last)
}

// wrote ends the pending request: the connection is its goroutine's again, or parked. What
// has come meanwhile is served here, since who was woken for it has gone to sleep again.
func (c *conn) wrote(err error, last bool) {
	if !c.letGo(err, last) {
		return
	}
	b, ok := c.s.buffers.Get().(*[turnBuffer]byte)
	if !ok {
		b = new([turnBuffer]byte)
	}
	c.visit(b[:], false)
	c.s.buffers.Put(b)
}

// letGo is wrote, and says that something has come on a connection that is parked.
func (c *conn) letGo(err error, last bool) (knocked bool) {
	c.s.handler.Written(&c.ans)
	c.ans.Fields, c.ans.Chunks = c.ans.Fields[:0], c.ans.Chunks[:0]
	clear(c.bufs)
	if c.out = c.out[:0]; cap(c.out) > maxKept {
		c.out = nil
	}
	if err == nil && last {
		err = errDone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed, c.pending, c.trying = err, false, false
	c.enter(idle)
	c.large = c.large || cap(c.out) > firstBuffer
	switch {
	case c.due:
		c.driveLocked()
	case c.place == turning: // the watcher looks at it before it lets go
	case c.place == parked && err == nil && !c.closing && !c.gone:
		knocked, c.knocked = c.knocked, false
	case c.place == driven && err == nil && !c.closing:
	case c.place == parked:
		c.driveLocked()
	case err == nil:
		// hurry saw it serving; there may be part of a next request already
		c.deadline(time.Now().Add(restTime))
	case !c.waiting:
		c.deadline(past) // wakes it
	}
	if c.waiting {
		c.news.Signal()
	}
	return knocked
}
