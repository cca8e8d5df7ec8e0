package h2

import (
	"context"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
)

// faulty is a Method whose calls panic about their answers; the header "when" says how.
type faulty struct {
	memory *heap
	late   chan *faultyCall // calls that are still to be answered
	sent   chan struct{}    // a token for each Sent
}

type faultyCall struct {
	m      *faulty
	st     *Stream
	memory *infer.Buffer // of the answer
}

// lentPart is a part of an answer that holds memory.
type lentPart struct {
	mem.SliceBuffer
	memory *infer.Buffer
}

func (p *lentPart) Free() { p.memory.Release() }

func (m *faulty) Begin(ctx context.Context, _ Call) (Call, error) {
	st, _ := FromContext(ctx)
	return &faultyCall{m: m, st: st}, nil
}

func (c *faultyCall) Memory(n int64, _ []byte) (*infer.Buffer, error) { return c.m.memory.Body(n) }

func (c *faultyCall) Quick() bool { return true }

func (c *faultyCall) Start(memory *infer.Buffer, _ []byte) func() {
	memory.Release()
	switch c.st.Header("when") {
	case "before":
		c.m.late <- c // as when who has the request answers though its Start has failed
		panic("asked")
	case "after":
		c.answer()
		panic("asked")
	case "waiting":
		return func() { c.answer(); panic("asked") }
	}
	c.answer()
	return nil
}

func (c *faultyCall) answer() {
	infer.Flush(c.st.Answer(mem.BufferSlice{&lentPart{mem.SliceBuffer("fine"), c.memory}}, nil))
}

func (c *faultyCall) Sent() bool {
	c.m.sent <- struct{}{}
	return true
}

func (c *faultyCall) Abort(error) {}

// A call that panics is answered once, whoever else answers it, before or behind the panic, and
// no other call has to do with it.
func TestPanicsAnswerOnce(t *testing.T) {
	f := start(t, nil)
	m := &faulty{memory: f.memory, late: make(chan *faultyCall, 1), sent: make(chan struct{}, 100)}
	f.s.methods["/test.Echo/Faulty"] = &method{name: "/test.Echo/Faulty", hot: m} // nobody has called yet
	c := hello(t, f)
	id := uint32(1)
	try := func(when, want string) {
		t.Helper()
		c.together(func() { c.call(id, "x", ":path", "/test.Echo/Faulty", "when", when) })
		if got := c.outcome(id); got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
		if id += 2; when != "before" {
			<-m.sent
		}
	}
	for range 5 {
		try("", "0 fine")
		try("before", "13: internal error")
		late := <-m.late
		try("", "0 fine") // another one, in whose place it must not answer
		freed := false
		late.memory = infer.NewBuffer(nil, func(*infer.Buffer) { freed = true })
		late.answer()
		if !freed {
			t.Error("the second answer was not freed")
		}
		try("after", "0 fine")
		try("waiting", "0 fine")
	}
	if got := c.ping(); got != "alive" {
		t.Error(got)
	}
	cn := f.s.conns.All()[0]
	poll(t, "no call is left", func() bool {
		cn.mu.Lock()
		defer cn.mu.Unlock()
		return cn.calls == 0 && cn.streams.n == 0
	})
	if n := len(m.sent); n > 0 {
		t.Errorf("Sent was called %d times too often", n)
	}
}
