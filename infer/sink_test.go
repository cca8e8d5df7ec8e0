package infer

import "testing"

type flusher struct{ n int }

func (f *flusher) Flush() { f.n++ }

// Each is flushed once, however many there are and how often it was added.
func TestFlushers(t *testing.T) {
	all := make([]flusher, 20)
	var s Flushers
	for round := 1; round <= 2; round++ {
		for range 3 {
			for i := range all {
				s.Add(&all[i])
			}
			s.Add(nil)
		}
		s.Flush()
		s.Flush()
		for i := range all {
			if all[i].n != round {
				t.Errorf("%d was flushed %d times, want %d", i, all[i].n, round)
			}
		}
	}
}
