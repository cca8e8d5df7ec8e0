package h2

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// late remembers calls that we ended before their client had, so that what is still on
// its way can be told from frames on streams that both sides have closed
// (RFC 9113, 5.1). It is the reading goroutine's alone.
type late struct{ ids map[uint32]struct{} }

// maxLate is how far back it remembers; a peer that leaves so many calls open has
// forgotten them.
const maxLate = 8192

func (l *late) add(id, last uint32) {
	if l.ids == nil {
		l.ids = map[uint32]struct{}{}
	}
	if len(l.ids) >= 2*maxLate {
		for old := range l.ids { // they are odd, so half remain at the most
			if old+2*maxLate < last {
				delete(l.ids, old)
			}
		}
	}
	l.ids[id] = struct{}{}
}

func (l *late) has(id uint32) bool {
	_, ok := l.ids[id]
	return ok
}

func (l *late) forget(id uint32) { delete(l.ids, id) }

// forgetStale drops the calls that were answered before their client had ended.
func (c *conn) forgetStale() {
	c.mu.Lock()
	stale := c.stale
	c.stale = nil
	c.mu.Unlock()
	for _, id := range stale {
		if st := c.receiving.get(id); st != nil {
			c.receiving.remove(id)
			c.forget(st)
		}
		c.late.add(id, c.lastID)
	}
}

// forget ends what is left of a call that was answered, or reset by us, before its client
// had ended.
func (c *conn) forget(st *Stream) {
	switch {
	case st.discard:
	case !st.dispatched: // it was begun, and gets neither Start nor Sent
		if st.call != nil {
			st.call.Abort(errShort)
		}
		c.drop(&st.in)
	case !st.in.complete:
		if !st.method.streams() {
			st.arrive(errShort)
		}
		c.drop(&st.in)
	}
	st.discard = true
}

// errStalled is what a call hears whose message stopped half-way.
var errStalled = status.Error(codes.DeadlineExceeded, "the message did not arrive in time")

// expire ends calls of whose messages a part has come and nothing more for long: they
// hold memory. The time of a message begins anew where nobody has read the one before it:
// the client's window may be full.
func (c *conn) expire(at int64) {
	for _, st := range c.receiving.all() {
		if st.method.streams() && st.inbox.unread(st) {
			st.in.heard = at
		}
		if !st.discard && !st.in.complete && st.in.have > 0 && at-st.in.heard > int64(c.s.cfg.WriteTimeout) {
			c.fail(st, errStalled)
		}
	}
}
