package h2

import (
	"errors"

	"github.com/sluice-serve/sluice/gateway/listen"
)

// errShed ends a connection whose descriptor another one needs.
var errShed = errors.New("h2: the connection rests, and its descriptor is needed")

// resting appends the connections without a call, for listen.Descriptors.
func (s *Server) resting(_ int64, to []listen.Resting) []listen.Resting {
	for _, c := range s.conns.All() {
		c.mu.Lock()
		if c.restsLocked() {
			to = append(to, listen.Resting{Since: c.heard.Load(), Conn: c})
		}
		c.mu.Unlock()
	}
	return to
}

func (c *conn) restsLocked() bool {
	return c.ended == nil && !c.draining && c.streams.n == 0 && c.calls == 0 && !c.flushing && c.out.empty()
}

// Shed is listen.Shedder's: it tells the peer that calls which are on their way were not
// begun, and closes.
func (c *conn) Shed(since int64) bool {
	c.mu.Lock()
	if !c.restsLocked() || c.heard.Load() != since {
		c.mu.Unlock()
		return false
	}
	if c.ready {
		c.draining, c.lastOK = true, c.opened.Load()
		c.out.small = appendGoAway(c.out.small, c.lastOK, codeNo, "")
	}
	ready := c.ready
	c.mu.Unlock()
	if ready {
		c.flush(false)
	}
	c.close(errShed)
	return true
}

var _ listen.Shedder = (*conn)(nil)
