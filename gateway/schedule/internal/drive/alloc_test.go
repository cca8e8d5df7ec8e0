package drive_test

import (
	"testing"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

// counting is a Sink that counts.
type counting struct{ answers, ends int }

func (c *counting) Large(*infer.Response) bool { return false }

func (c *counting) Send(r *infer.Response) error {
	c.answers++
	r.Memory.Release()
	return nil
}

func (c *counting) Done(error) infer.Flusher {
	c.ends++
	return nil
}

// TestStartAllocations holds what a started request allocates that is a batch by itself:
// the batch and its Deliver, the response and its output's shape; the test's result and
// context are four more.
func TestStartAllocations(t *testing.T) {
	mem, err := shm.NewHeap(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	answer := answers(make([]byte, 512))
	s, err := dynamic.New(dynamic.Config{Model: model(32)}, deps(mem, &counts{}, &fake{executed: func(b *infer.Batch) { b.Deliver(answer(b)) }}))
	if err != nil {
		t.Fatal(err)
	}
	req, to, n := benchRequest(), &counting{}, 0
	got := testing.AllocsPerRun(1000, func() {
		ctx := &lifetime.Context{}
		s.Start(ctx, req, to)
		n++
	})
	t.Logf("%.1f allocations for a request", got)
	if most := 9.0; got > most { // one of them where the race detector empties pools
		t.Errorf("a request takes %.1f allocations, at most %.0f", got, most)
	}
	if to.answers != n || to.ends != n {
		t.Errorf("%d answers and %d ends of %d requests", to.answers, to.ends, n)
	}
}
