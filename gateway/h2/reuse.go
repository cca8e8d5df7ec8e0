package h2

// A Method's call whose answer was sent leaves its memory to the connection's next one: the
// Stream, and the Call that the Method made of it. Three may still be at it then, in any
// order: the reading goroutine, until Start has returned to it; who answers, until Answer
// has told that the context is over; and who writes, until Sent. Whoever is the last gives
// it back. What ended otherwise is the garbage collector's, as others may know of it: calls
// that were reset, or refused, or waited on a goroutine, or whose timer goes off.

// maxFree bounds the streams that a connection keeps.
const maxFree = 32

// newLocked gives a Stream for a call.
func (c *conn) newLocked() *Stream {
	n := len(c.free)
	if n == 0 {
		return &Stream{record: record{c: c}}
	}
	st := c.free[n-1]
	c.free[n-1], c.free = nil, c.free[:n-1]
	return st
}

// begin asks the stream's Method for a Call, in the memory of the last one, if there is one.
func (st *Stream) begin() (err error) {
	old := st.old
	st.old = nil
	if st.was != st.method {
		old = nil
	}
	st.was = st.method
	st.call, err = st.method.hot.Begin(st, old)
	return err
}

// sent tells the call that its answer was written. True: the stream may be another call's.
func (st *Stream) sent() bool {
	again := st.again
	if !st.call.Sent() || !again {
		return false
	}
	return st.life.Or(callSent)|callSent == callComplete
}

// reuse gives a stream back that nobody is at.
func (c *conn) reuse(st *Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reuseLocked([]*Stream{st})
}

func (c *conn) reuseLocked(all []*Stream) {
	if c.ended != nil {
		return
	}
	for _, st := range all {
		if len(c.free) == maxFree {
			return
		}
		if st.Renew() {
			st.old, st.call = st.call, nil
			st.record = record{c: c}
			c.free = append(c.free, st)
		}
	}
}

// unbegin takes a call that is dispatched out of those that were begun, of which settle
// takes care.
func (c *conn) unbegin(st *Stream) {
	if st.place >= len(c.begun) || c.begun[st.place] != st {
		return
	}
	c.begun[st.place] = nil
	if st.place == len(c.begun)-1 {
		c.begun = c.begun[:st.place]
	}
}

// leave ends the reading goroutine's account of calls: those that are still at it are the
// server's to wait for.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.free = true, nil
	c.s.started.Add(c.calls)
}
