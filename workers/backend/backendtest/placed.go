package backendtest

import (
	"bytes"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// testPlaced wants outputs of floating point in the memory that a request which is alone
// has for them, and its failure where that has not enough room.
func testPlaced(t *testing.T, s Subject) {
	for _, m := range s.Models {
		if m.Keeps { // the worker copies what comes later
			continue
		}
		withInstance(t, s, m, func(inst backend.Instance) {
			b := m.batch(1)
			b.Run(inst)
			m.check(t, "in place", b)
			placed := checkPlaced(t, m.Spec.Name, b)
			for _, n := range []int64{1, 0} {
				again := m.batch(1)
				again.OutputRoom = n
				again.Run(inst)
				if a := again.Answers()[0]; n > 0 && placed && a.Err == nil {
					t.Errorf("%s: a request succeeds whose outputs have no room", m.Spec.Name)
				} else if n == 0 {
					m.check(t, "after one without room", again)
				}
			}
		})
	}
}

// checkPlaced says whether any output had to be in place.
func checkPlaced(t *testing.T, name string, b *Batch) (placed bool) {
	for _, r := range b.Answers()[0].Responses {
		for _, o := range r.Outputs {
			if len(o.Data) < 2 || o.Datatype != infer.FP16 && o.Datatype != infer.FP32 && o.Datatype != infer.FP64 {
				continue
			}
			placed = true
			if !bytes.Equal(b.Placed[o.Name], o.Data) {
				t.Errorf("%s: output %q is not in its place", name, o.Name)
			}
		}
	}
	return placed
}
