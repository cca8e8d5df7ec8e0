package drive_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// streaming is a scheduler of a decoupled model with one batch under way: the first n answers are
// handed over before the caller has sent any, and more hands over others. The answers' IDs count.
type streaming struct {
	s       *dynamic.Scheduler
	mem     *memory
	more    func(n int, final bool)
	handed  int
	dropped int // whose memory was released
}

func newStreaming(t *testing.T, n int) *streaming {
	t.Helper()
	x := &streaming{mem: newMemory(1 << 20)}
	f := &fake{executed: func(b *infer.Batch) {
		x.more = func(n int, final bool) {
			for i := range n {
				last := final && i == n-1
				resp := &infer.Response{Outputs: []infer.Tensor{{Name: "N", Shape: []int64{int64(x.handed)}}}, Final: last}
				x.handed++
				b.Deliver(&infer.Result{More: !last, Memory: infer.NewBuffer(nil, func(*infer.Buffer) { x.dropped++ }),
					Responses: []infer.RequestResult{{Response: resp}}})
			}
		}
		x.more(n, false)
	}}
	m := model(8)
	m.Decoupled = true
	var err error
	if x.s, err = dynamic.New(dynamic.Config{Model: m}, deps(x.mem, nil, f)); err != nil {
		t.Fatal(err)
	}
	return x
}

// Answers keep their order and their number while more come than have been sent, and their
// memory is given back.
func TestBacklog(t *testing.T) {
	const all = 300
	x, sent := newStreaming(t, 5), 0
	err := x.s.Do(t.Context(), request("a", 1), func(r *infer.Response) error {
		check(t, "answer", r.Outputs[0].Shape[0], int64(sent))
		if sent++; x.handed < all {
			n := min(1+sent%8/7, all-x.handed) // most often as many as are sent, at times more
			x.more(n, x.handed+n == all)
		}
		r.Memory.Release()
		return nil
	})
	check(t, "error", err, nil)
	check(t, "answers", sent, all)
	check(t, "released", x.dropped, all)
	check(t, "memory", x.mem.inUse(), 0)
}

// A caller that leaves while answers wait for it gets no more of them, and the memory of all is
// given back; so does one whose send fails or panics.
func TestBacklogIsDropped(t *testing.T) {
	refused := errors.New("no")
	for name, c := range map[string]struct {
		third func(leave func()) error
		check func(err error) bool
	}{
		"leaves": {func(leave func()) error { leave(); return nil },
			func(err error) bool { return infer.CodeOf(err) == infer.Cancelled }},
		"refuses": {func(func()) error { return refused }, func(err error) bool { return errors.Is(err, refused) }},
		"panics":  {func(func()) error { panic("no") }, func(err error) bool { return infer.CodeOf(err) == infer.Internal }},
	} {
		t.Run(name, func(t *testing.T) {
			x, sent := newStreaming(t, 20), 0
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			err := x.s.Do(ctx, request("a", 1), func(r *infer.Response) error {
				r.Memory.Release()
				if sent++; sent == 3 {
					return c.third(leave)
				}
				return nil
			})
			if !c.check(err) {
				t.Errorf("error %v", err)
			}
			check(t, "answers", sent, 3)
			check(t, "released", x.dropped, 20)
			x.more(1, true)
			check(t, "released", x.dropped, 21)
			check(t, "memory", x.mem.inUse(), 0)
		})
	}
}
