package python

import (
	"testing"
	"time"
)

// A flood is dropped and counted, and what comes after it says so.
func TestFlood(t *testing.T) {
	var f flood
	now := time.Unix(1000, 0)
	logged := 0
	for range 10 * linesAtOnce {
		if _, ok := f.take(now); ok {
			logged++
		}
	}
	if logged != linesAtOnce {
		t.Errorf("%d lines at once, want %d", logged, linesAtOnce)
	}
	dropped, ok := f.take(now.Add(time.Second))
	if !ok || dropped != 9*linesAtOnce {
		t.Errorf("after a second %v, %d dropped before", ok, dropped)
	}
	for range linesASec - 1 {
		if dropped, ok := f.take(now.Add(time.Second)); !ok || dropped > 0 {
			t.Fatalf("%v, %d", ok, dropped)
		}
	}
	if _, ok := f.take(now.Add(time.Second)); ok {
		t.Error("more lines than a second's")
	}
}
