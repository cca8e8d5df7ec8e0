package stats

import (
	"testing"
	"time"
)

// What a load report counts: all requests that ended but invalid ones, failures that were
// no caller's doing, and what the batches cost.
func TestCounts(t *testing.T) {
	got := busyModel(New(Config{}, Deps{})).Counts()
	want := Counts{Requests: 8, Failed: 4, Executed: 3, Compute: 14 * time.Millisecond}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMachine(t *testing.T) {
	for range 2 {
		if cpu, memory := Machine()(); cpu < 0 || cpu > 1 || memory <= 0 || memory >= 1 {
			t.Errorf("processors %v, memory %v", cpu, memory)
		}
	}
}
