package cache

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A response out of the cache counts in the budget while somebody has it, whatever becomes of its entry.
func TestHitsAreCounted(t *testing.T) {
	budget := &infer.Budget{Limit: 200 << 10}
	s := NewStep(&store{m: map[Key]*Entry{}}, budget)
	sub := &Subject{Model: "m", Version: "1", Load: 1}
	r := &runner{current: sub, shape: func(resp *infer.Response) {
		resp.Outputs[0].Data = make([]byte, 64<<10)
		resp.Outputs[0].Shape = []int64{16 << 10}
	}}
	var got []*infer.Response
	ask := func() error {
		x := infer.Tensor{Name: "X", Datatype: infer.Int32, Shape: []int64{1}, Data: []byte{1, 2, 3, 4}}
		req := &infer.Request{Inputs: []infer.Tensor{x}}
		return s.Do(t.Context(), sub, r, req, func(resp *infer.Response) error { got = append(got, resp); return nil })
	}
	if err := ask(); err != nil || budget.Used() != 0 {
		t.Fatalf("a miss: %v, %d bytes counted", err, budget.Used())
	}
	for n := int64(1); n <= 3; n++ {
		if err := ask(); err != nil || budget.Used() < n*64<<10 || budget.Used() > n*65<<10 {
			t.Fatalf("hit %d: %v, %d bytes counted", n, err, budget.Used())
		}
	}
	if err := ask(); infer.ReasonOf(err) != infer.ReasonMemory {
		t.Errorf("a hit over the limit: %v, want reason %s", err, infer.ReasonMemory)
	}
	if _, err := s.Purge(t.Context(), Selector{}); err != nil || budget.Used() < 3*64<<10 {
		t.Errorf("purged: %v, %d bytes counted", err, budget.Used())
	}
	for _, resp := range got {
		resp.Memory.Release()
	}
	if budget.Used() != 0 {
		t.Errorf("%d bytes counted after all were released", budget.Used())
	}
}
