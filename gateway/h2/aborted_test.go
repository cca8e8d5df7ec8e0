package h2

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
)

// abortable is a Method whose calls notice that they are asked for memory once they were told
// that their message does not come.
type abortable struct {
	memory  *heap
	aborted atomic.Int64
	asked   atomic.Int64 // too late
}

type abortableCall struct {
	m    *abortable
	st   *Stream
	over bool // no lock: Abort is the last that a call hears
}

func (m *abortable) Begin(ctx context.Context, _ Call) (Call, error) {
	st, _ := FromContext(ctx)
	return &abortableCall{m: m, st: st}, nil
}

func (c *abortableCall) Memory(n int64, _ []byte) (*infer.Buffer, error) {
	if c.over {
		c.m.asked.Add(1)
	}
	return c.m.memory.Body(n)
}

func (c *abortableCall) Quick() bool { return true }

func (c *abortableCall) Start(memory *infer.Buffer, _ []byte) func() {
	memory.Release()
	infer.Flush(c.st.Answer(mem.BufferSlice{mem.SliceBuffer("fine")}, nil))
	return nil
}

func (c *abortableCall) Sent() bool { return false }

func (c *abortableCall) Abort(error) {
	c.over = true
	c.m.aborted.Add(1)
}

// A call whose time is up while its message is on the way is asked for no memory any more,
// though the message still comes.
func TestNoMemoryIsAskedBehindAbort(t *testing.T) {
	f := start(t, nil)
	m := &abortable{memory: f.memory}
	f.s.methods["/test.Echo/Abortable"] = &method{name: "/test.Echo/Abortable", hot: m} // nobody has called yet
	c := hello(t, f)
	for i := range uint32(5) {
		id := 2*i + 1
		c.headers(id, false, request(":path", "/test.Echo/Abortable", "grpc-timeout", "1m")...)
		poll(t, "its time is up", func() bool { return m.aborted.Load() == int64(i)+1 })
		c.must(c.fr.WriteData(id, true, message("late")))
		if got := c.outcome(id); got != "4: context deadline exceeded" {
			t.Fatal(got)
		}
	}
	if n := m.asked.Load(); n > 0 {
		t.Errorf("%d calls were asked for memory behind their end", n)
	}
}
