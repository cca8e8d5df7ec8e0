package h2

import "testing"

// Goroutines that nobody needed for a while end; those that were needed stay.
func TestCrewTrims(t *testing.T) {
	w := &crew{}
	for range 100 {
		w.hands.Add(1)
		ch := make(chan *Stream, 1)
		w.idle = append(w.idle, ch)
		go func() {
			defer w.hands.Done()
			<-ch
		}()
	}
	step := func(name string, want int) {
		t.Helper()
		if w.trim(); len(w.idle) != want {
			t.Errorf("%s: %d are left, want %d", name, len(w.idle), want)
		}
	}
	step("all were in use once", 100)
	w.low = 40
	step("60 were in use", 60)
	w.low = 0
	step("all were", 60)
	step("none was", keptIdle)
	if w.trims != nil {
		t.Error("it looks on although few are left")
	}
	w.stop()
}
