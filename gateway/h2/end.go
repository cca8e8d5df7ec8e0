package h2

import (
	"cmp"
	"context"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// close ends the connection and every call on it; the first reason counts.
func (c *conn) close(err error) { c.end(cmp.Or(err, io.EOF), false) }

// finish is close when all that is to be said was written. The peer may still be
// sending, and a connection that is closed on what it sends is reset, which can cost
// the peer what it has not read. So our direction alone is closed, and the reading
// goroutine waits a moment for the peer's end.
func (c *conn) finish(err error) { c.end(err, true) }

// linger is the reading goroutine's part of finish.
func (c *conn) linger() {
	if err := c.nc.SetReadDeadline(time.Now().Add(lastWords)); err == nil {
		for left := maxLinger; left > 0; {
			n, err := c.nc.Read(c.buf)
			if left -= n; err != nil {
				break
			}
		}
	}
	_ = c.outer.Close() // all was said
}

// maxLinger bounds what is read of a peer that does not stop.
const maxLinger = 16 << 20

func (c *conn) end(err error, linger bool) {
	c.mu.Lock()
	if c.ended != nil {
		parked, outer := c.fd >= 0, c.outer
		c.mu.Unlock()
		if !linger && !parked {
			_ = outer.Close() // it may linger
		}
		return
	}
	c.ended = err
	var half interface{ CloseWrite() error }
	switch parked := c.fd >= 0; {
	case parked: // its goroutine closes
		c.lingers = linger && unix.Shutdown(c.fd, unix.SHUT_WR) == nil
	case linger: // then the handshake is over and nc stays
		half, c.lingers = c.nc.(interface{ CloseWrite() error })
	}
	streams := c.streams.all()
	for _, st := range streams {
		c.removeLocked(st)
	}
	if c.alive != nil {
		c.alive.Stop()
	}
	if c.age != nil {
		c.age.Stop()
	}
	if !c.flushing { // else whoever writes drops it
		c.out.drop()
	}
	c.room.Broadcast()
	lingers, parked, nc, outer := c.lingers, c.fd >= 0, c.nc, c.outer
	c.driveLocked()
	c.mu.Unlock()
	if lingers && !parked {
		lingers = half.CloseWrite() == nil && nc.SetReadDeadline(time.Unix(1, 0)) == nil
	}
	if !lingers && !parked {
		_ = outer.Close() // what it still had to say is said or lost
	}
	for _, st := range streams {
		st.End(context.Canceled)
	}
}
