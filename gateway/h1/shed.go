package h1

import "github.com/sluice-serve/sluice/gateway/listen"

// resting appends the connections that wait for a request, for listen.Descriptors. Since when
// they do is known to a second.
func (s *Server) resting(_ int64, to []listen.Resting) []listen.Resting {
	for _, c := range s.conns.All() {
		since := c.seenAt.Load()
		if c.restsSince(since) {
			to = append(to, listen.Resting{Since: since, Conn: c})
		}
	}
	return to
}

// restsSince says that the connection has been waiting for a request since tick saw it at it.
func (c *conn) restsSince(at int64) bool {
	state := c.seen.Load()
	return phaseOf(state) == idle && c.state.Load() == state && c.seenAt.Load() == at
}

// Shed is listen.Shedder's: it closes a connection that rests.
func (c *conn) Shed(since int64) bool {
	c.mu.Lock()
	rests := c.restsSince(since) && !c.pending && !c.closing && !c.gone
	c.closing = c.closing || rests // another batch passes it over
	c.mu.Unlock()
	if rests {
		c.cut()
	}
	return rests
}

var _ listen.Shedder = (*conn)(nil)
