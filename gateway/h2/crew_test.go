package h2

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// Goroutines that nobody needed for a while end; those that were needed stay.
func TestCrewTrims(t *testing.T) {
	w := &crew{}
	for range 100 {
		w.hands.Add(1)
		ch := make(chan *Stream, 1)
		w.idle = append(w.idle, ch)
		go func() {
			defer w.hands.Done()
			<-ch
		}()
	}
	step := func(name string, want int) {
		t.Helper()
		if w.trim(); len(w.idle) != want {
			t.Errorf("%s: %d are left, want %d", name, len(w.idle), want)
		}
	}
	step("all were in use once", 100)
	w.low = 40
	step("60 were in use", 60)
	w.low = 0
	step("all were", 60)
	step("none was", keptIdle)
	if w.trims != nil {
		t.Error("it looks on although few are left")
	}
	w.stop()
}

// leaving is a Method whose wait leaves the answer to another goroutine, as who tells of an
// error in a log does.
type leaving struct{ release chan struct{} }

type leavingCall struct {
	*leaving
	st *Stream
}

func (l *leaving) Begin(ctx context.Context, _ Call) (Call, error) {
	st, ok := FromContext(ctx)
	if !ok {
		return nil, errors.New("no stream")
	}
	return &leavingCall{l, st}, nil
}

func (c *leavingCall) Memory(n int64, _ []byte) (*infer.Buffer, error) {
	return infer.NewBuffer(make([]byte, n), func(*infer.Buffer) {}), nil
}

func (c *leavingCall) Quick() bool { return false }

func (c *leavingCall) Sent() bool { return false }

func (c *leavingCall) Abort(error) {}

func (c *leavingCall) Start(memory *infer.Buffer, _ []byte) (wait func()) {
	return func() {
		memory.Release()
		go func() {
			<-c.release
			infer.Flush(c.st.Answer(nil, status.Error(codes.NotFound, "later")))
		}()
	}
}

// An answer that is given when the call's goroutine has gone on is written at once, and not
// with what is next on the connection.
func TestAnsweredBehindItsGoroutine(t *testing.T) {
	f := start(t, nil)
	l := &leaving{release: make(chan struct{})}
	f.s.handle("/test.Leaving/Call", l)
	cc := f.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		in, out := []byte("x"), []byte(nil)
		ended <- cc.Invoke(ctx, "/test.Leaving/Call", &in, &out)
	}()
	poll(t, "the goroutine has done", func() bool {
		f.s.crew.mu.Lock()
		defer f.s.crew.mu.Unlock()
		return len(f.s.crew.idle) == 1
	})
	close(l.release)
	if err := <-ended; status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want its own answer", err)
	}
}
