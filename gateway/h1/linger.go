package h1

import "time"

// The bounds of lingering, those of nginx: how long the client may take until something more of the
// body comes, and until all has come. Many clients read no answer before they have sent their
// request, and closing at once would reset the connection under both.
// Source: lingering_timeout and lingering_time, nginx's core module.
const (
	lingerIdle = 5 * time.Second
	lingerTime = 30 * time.Second
)

// linger reads away what the client still sends behind our last answer, until it closes or has had
// its time.
func (c *conn) linger(unread bool) {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !unread || !ok || half.CloseWrite() != nil {
		return
	}
	c.enter(lingering)
	c.r, c.w = 0, 0
	if len(c.buf) < readBuffer {
		c.buf = make([]byte, readBuffer)
	}
	end := time.Now().Add(c.s.lingerTime)
	for first := true; c.lingers(end, first); first = false {
		if _, err := c.nc.Read(c.buf); err != nil {
			return
		}
	}
}

// lingers sets the deadline of the next read; false: its time is over.
func (c *conn) lingers(end time.Time, first bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.closing { // what hurry has set counts for all reads
		return !first || c.nc.SetReadDeadline(now.Add(restTime)) == nil
	}
	at := now.Add(c.s.lingerIdle)
	if end.Before(at) {
		at = end
	}
	return now.Before(end) && c.nc.SetReadDeadline(at) == nil
}
