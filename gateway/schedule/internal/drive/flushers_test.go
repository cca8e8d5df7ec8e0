package drive

import (
	"slices"
	"testing"
)

type flusher struct{ n int }

func (f *flusher) Flush() { f.n++ }

// Each is flushed once, however many there are and how often it was added.
func TestFlushers(t *testing.T) {
	all := make([]flusher, 20)
	var s flushers
	for round := 1; round <= 2; round++ {
		for range 3 {
			for i := range all {
				s.add(&all[i])
			}
			s.add(nil)
		}
		s.flush()
		s.flush()
		for i := range all {
			if all[i].n != round {
				t.Errorf("%d was flushed %d times, want %d", i, all[i].n, round)
			}
		}
	}
}

type faulty struct{ n int }

func (f *faulty) Flush() { f.n++; panic("faulty") }

// One that panics, or several, keep none of the others waiting.
func TestFlushersAfterFaults(t *testing.T) {
	for _, bad := range [][]int{{0}, {7}, {8}, {19}, {0, 1, 2, 18, 19}} {
		var s flushers
		all, faults := make([]flusher, 20), make([]faulty, 20)
		for i := range all {
			if slices.Contains(bad, i) {
				s.add(&faults[i])
				all[i].n++
			} else {
				s.add(&all[i])
			}
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v: the panic was kept", bad)
				}
			}()
			s.flush()
		}()
		for i := range all {
			if all[i].n != 1 || faults[i].n > 1 {
				t.Errorf("%v: %d was flushed %d times", bad, i, all[i].n)
			}
		}
	}
}

// TestFlushersAllocations holds that a set of the usual size costs nothing.
func TestFlushersAllocations(t *testing.T) {
	all := make([]flusher, 8)
	if n := testing.AllocsPerRun(100, func() {
		var s flushers
		for i := range all {
			s.add(&all[i])
		}
		s.flush()
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}
