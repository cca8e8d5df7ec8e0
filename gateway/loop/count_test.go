package loop

import "testing"

func TestCount(t *testing.T) {
	for procs, want := range map[int]int{1: 0, 2: 1, 3: 1, 7: 1, 8: 2, 64: 16} {
		if got := Count(procs); got != want {
			t.Errorf("%d loops for %d processors, want %d", got, procs, want)
		}
	}
}
