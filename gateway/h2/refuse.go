package h2

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refuse answers a call that is not dispatched with an error, and passes over what
// comes of it.
func (c *conn) refuse(st *Stream, err error) {
	if st.discard {
		return
	}
	st.discard = true
	if r, ok := err.(Refusal); ok {
		c.refuseAside(st, r)
		return
	}
	c.receiving.remove(st.id)
	if st.call != nil {
		st.call.Abort(err)
	}
	c.drop(&st.in)
	st.answer(nil, err)
	st.End(context.Canceled)
	c.news = true
}

// refuseAside is refuse on a goroutine. Until it has answered, the call counts as any
// other, and what comes of it is passed over.
func (c *conn) refuseAside(st *Stream, r Refusal) {
	st.rest = func() { st.end(nil, st.told(r), st.said(), false) }
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	c.s.crew.run(st)
	c.gather.Woke()
}

// told is what answers a call that was refused.
func (st *Stream) told(r Refusal) (err error) {
	defer func() {
		if p := recover(); p != nil {
			st.c.s.deps.Log.Error("gRPC: a method panicked", "method", st.method.name, "panic", p)
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return r.Tell()
}
