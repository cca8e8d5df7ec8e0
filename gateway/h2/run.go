package h2

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// What has become of a Method's call. Whoever answers it tells by this whether somebody
// else is about to write.
const (
	callReturned uint32 = 1 << iota // from Start and what that left to do; until then who called it looks for the answer afterwards
	callAnswered
	callSent     // and the call said that it may be another one
	callBroken   // its stream ended while its answer was still to be sent, or it panicked: it is never another one
	callAnswers  // Answer has begun, for the first and only time
	callComplete = callReturned | callAnswered | callSent | callAnswers
)

// onReader is the size of messages up to which calls are started on the connection's
// goroutine: decoding a large one would hold up the calls behind it. Of quick ones it is
// quickOnReader: what that goroutine is spared is little beside reading them.
const (
	onReader      = 32 << 10
	quickOnReader = 1 << 20
)

// begins says that the reading goroutine may start a call.
func (st *Stream) begins() bool {
	in := &st.in
	if st.call == nil || !in.complete || in.compressed {
		return false
	}
	return in.length <= onReader || in.length <= quickOnReader && st.call.Quick()
}

// start starts a call on the reading goroutine.
func (c *conn) start(st *Stream) {
	c.mu.Lock()
	c.calls++
	c.small++
	c.mu.Unlock()
	memory, data := st.in.memory, st.in.data
	st.in.memory, st.in.data = nil, nil
	again := st.remoteEnd.Load()
	st.early, st.again = true, again
	if rest := st.startCall(memory, data); rest != nil {
		st.rest, st.again = rest, false
		c.s.crew.run(st)
		c.gather.Woke()
		return
	}
	before := st.life.Or(callReturned)
	if before&callAnswered != 0 {
		c.news = true
	}
	if again && before|callReturned == callComplete {
		c.reuse(st)
	}
}

// startCall is the call's Start; a panic of it ends the call alone.
func (st *Stream) startCall(memory *infer.Buffer, data []byte) (wait func()) {
	defer st.broken()
	return st.call.Start(memory, data)
}

// broken answers a call whose method panicked, if nobody has. Others may have the call, and
// answer it later: it is told nothing more, and its memory is no other call's.
func (st *Stream) broken() {
	p := recover()
	if p == nil {
		return
	}
	go st.c.s.deps.Log.Error("gRPC: a method panicked", "method", st.method.name, "panic", p)
	st.life.Or(callBroken)
	infer.Flush(st.end(nil, status.Error(codes.Internal, "internal error"), st.said(), false))
}

// run answers a call, on a goroutine of the crew.
func (st *Stream) run() {
	defer st.spoke()
	c := st.c
	if st.method.hot == nil {
		st.method.served.run(st)
		st.End(context.Canceled)
		c.mu.Lock()
		c.calls--
		over := c.over
		c.mu.Unlock()
		c.flush(true)
		if over {
			c.s.started.Done()
		}
		return
	}
	if st.rest == nil {
		st.rest = st.receive()
	}
	if st.rest != nil {
		st.wait()
	}
	if st.life.Or(callReturned)&callAnswered == 0 {
		return // whoever answers it writes
	}
	c.flush(true)
}

// receive waits for a call's message and starts the call.
func (st *Stream) receive() (wait func()) {
	err := st.arrival()
	var memory *infer.Buffer
	var data []byte
	if err == nil {
		memory, data, err = st.message()
	}
	if err != nil {
		st.call.Abort(err)
		st.end(nil, err, st.said(), false)
		return nil
	}
	return st.startCall(memory, data)
}

// wait is what Start left to do.
func (st *Stream) wait() {
	defer st.broken()
	st.rest()
}

// Answer ends a Method's call after its Start, once: with an encoded message, which the
// transport then owns, or with an error that carries a gRPC status. What it returns is to
// be flushed by who answers; nil: somebody else is about to write. After a panic of Start, which
// answers the call, it frees the message and does nothing.
func (st *Stream) Answer(parts mem.BufferSlice, err error) infer.Flusher {
	said := st.said()
	if err == nil && said.compressor != "" {
		parts, err = st.c.s.compressBy(said.compressor, parts)
	}
	return st.end(parts, err, said, true)
}

// end ends a Method's call, once; tell says that its Sent is called.
func (st *Stream) end(parts mem.BufferSlice, err error, said said, tell bool) infer.Flusher {
	if st.life.Or(callAnswers)&callAnswers != 0 {
		parts.Free()
		return nil
	}
	c, again := st.c, st.again
	c.mu.Lock()
	gone := st.gone || c.ended != nil
	st.answerLocked(parts, err, said)
	switch {
	case !tell || gone:
	case st.queued:
		st.out.tell = true
	default:
		c.out.told = append(c.out.told, st)
	}
	c.calls--
	over := c.over
	c.mu.Unlock()
	st.End(context.Canceled)
	if tell && gone {
		st.call.Sent()
	}
	before := st.life.Or(callAnswered) // after this it may be another call
	if over {
		c.s.started.Done()
	}
	if again && before|callAnswered == callComplete {
		c.reuse(st)
	}
	if before&callReturned != 0 {
		return c
	}
	return nil
}
