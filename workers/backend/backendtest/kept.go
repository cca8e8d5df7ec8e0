package backendtest

import (
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// eachKept calls f for an instance of each model whose requests a backend keeps open: it
// declares that, and has such a model.
func eachKept(t *testing.T, s Subject, f func(m Model, inst backend.Instance)) {
	any := false
	most := s.Backend.Info().OpenRequests
	for _, m := range s.Models {
		if m.Keeps && most > 0 {
			any = true
			withInstance(t, s, m, func(inst backend.Instance) { f(m, inst) })
		}
	}
	if any != (most > 0) {
		t.Errorf("the backend declares %d open requests; models that keep batches: %v", most, any)
	}
}

// testKept wants Execute to return before the answers are there, several batches of one
// instance to be open at a time, and the right answers to each.
func testKept(t *testing.T, s Subject) {
	eachKept(t, s, func(m Model, inst backend.Instance) {
		var all []*Batch
		for range 4 {
			b := m.batch(1)
			b.Begin(inst)
			if !b.Kept() {
				t.Errorf("%s: the batch was not kept", m.Spec.Name)
			}
			all = append(all, b)
		}
		for i, b := range all {
			b.Wait()
			m.check(t, fmt.Sprintf("kept batch %d", i), b)
		}
	})
}

// testKeptCancelled wants a request that is cancelled after Execute returned to end, and what
// is open beside it to be answered.
func testKeptCancelled(t *testing.T, s Subject) {
	eachKept(t, s, func(m Model, inst backend.Instance) {
		b, beside := m.batch(1), m.batch(1)
		b.Begin(inst)
		beside.Begin(inst)
		b.Cancel(0)
		b.Wait()
		checkFaults(t, m.Spec.Name, b)
		if a := b.Answers()[0]; a.Err != nil && infer.CodeOf(a.Err) != infer.Cancelled {
			t.Errorf("%s: a cancelled request failed with %v", m.Spec.Name, a.Err)
		}
		beside.Wait()
		m.check(t, "beside a cancelled one", beside)
	})
}

// testKeptAbandoned wants a request that the worker has failed to be let go of, and answers to
// others.
func testKeptAbandoned(t *testing.T, s Subject) {
	eachKept(t, s, func(m Model, inst backend.Instance) {
		b, beside := m.batch(1), m.batch(1)
		b.Begin(inst)
		beside.Begin(inst)
		b.Abandon(0)
		beside.Wait()
		m.check(t, "beside an abandoned one", beside)
		checkFaults(t, m.Spec.Name, b)
	})
}

// testKeptMemoryFull wants a refusal of memory after Execute returned to reach the request as
// it is.
func testKeptMemoryFull(t *testing.T, s Subject) {
	eachKept(t, s, func(m Model, inst backend.Instance) {
		b := m.batch(1)
		b.AllocLimit = 1
		b.Run(inst)
		checkFaults(t, m.Spec.Name, b)
		if a := b.Answers()[0]; a.Err != nil && infer.ReasonOf(a.Err) != infer.ReasonMemory {
			t.Errorf("%s: %v, want success or the refusal of Alloc", m.Spec.Name, a.Err)
		}
	})
}
