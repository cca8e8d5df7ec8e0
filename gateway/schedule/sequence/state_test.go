package sequence

import (
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// All states of a model together are bounded, and what is over is no longer counted.
func TestStatesAreBounded(t *testing.T) {
	s, err := newStage(&Config{Model: schedule.Model{Name: "m"}, States: []State{{Input: "I", Output: "O", Datatype: infer.Uint8, Dims: []int64{-1}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.most = 10
	step := func(seq *sequence, n int) error {
		out := []infer.Tensor{{Name: "O", Datatype: infer.Uint8, Shape: []int64{1, int64(n)}, Data: make([]byte, n)}}
		return s.capture(&infer.Batch{Rows: 1}, []*queue.Entry{{Group: seq}}, &infer.Result{Outputs: out})
	}
	a, b := &sequence{}, &sequence{}
	for _, row := range []struct {
		seq  *sequence
		n    int
		held int64
		ok   bool
	}{{a, 6, 6, true}, {b, 4, 10, true}, {a, 7, 10, false}, {a, 5, 9, true}, {b, 5, 10, true}} {
		if err := step(row.seq, row.n); (err == nil) != row.ok || s.held != row.held || err != nil && infer.ReasonOf(err) != infer.ReasonMemory {
			t.Errorf("%d bytes: %v, %d are held, want %d", row.n, err, s.held, row.held)
		}
	}
	s.drop(a)
	s.drop(a)
	if s.held != 5 || len((*b.values)[0].data) != 5 {
		t.Errorf("%d are held, want those of the other sequence", s.held)
	}
}
