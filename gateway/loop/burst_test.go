package loop

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

type dispatched struct{ n int }

func (d *dispatched) Dispatch() { d.n++ }

// A closed burst, and none, gather nothing; an open one tells each of its end once.
func TestBurst(t *testing.T) {
	var none *Burst
	var b Burst
	x, y := &dispatched{}, &dispatched{}
	if none.Add(x, 0) || b.Add(x, 0) || b.Holds() {
		t.Fatal("a burst that is not open gathers")
	}
	b.Open()
	for range 3 {
		if !b.Add(x, 10) || !b.Add(y, 10) {
			t.Fatal("refused")
		}
	}
	if !b.Holds() || x.n+y.n > 0 {
		t.Fatalf("told before the end: %d %d", x.n, y.n)
	}
	b.Close()
	b.Close()
	if x.n != 1 || y.n != 1 || b.Holds() || b.Add(x, 10) {
		t.Fatalf("told %d and %d times", x.n, y.n)
	}
}

// What it holds is bounded: in number, in time, and in those who wait.
func TestBurstBounds(t *testing.T) {
	var b Burst
	d := &dispatched{}
	b.Open()
	held := 0
	for b.Add(d, 0) {
		held++
	}
	if held != burstMost-1 {
		t.Errorf("%d requests are held", held)
	}
	b.Close()
	b.Open()
	if !b.Add(d, 5) || !b.Add(d, 4+burstTime) || b.Add(d, 5+burstTime) {
		t.Error("the time counts from the first that is held")
	}
	b.Close()
	if d.n != 2 {
		t.Errorf("told %d times", d.n)
	}
	b.Open()
	b.Add(d, infer.Now())
	b.Open()
	if d.n != 2 || !b.Holds() {
		t.Error("a burst that goes on is not over")
	}
	b.Close()
	b.Open()
	b.Add(d, infer.Now()-burstTime)
	b.Open()
	if d.n != 4 || b.Holds() || !b.Add(d, infer.Now()) {
		t.Error("a reader that always finds more to read holds a burst for ever")
	}
	b.Close()
	b.Open()
	for range len(b.due) {
		if !b.Add(&dispatched{}, 0) {
			t.Fatal("refused")
		}
	}
	if b.Add(d, 0) || !b.Add(b.due[0], 0) {
		t.Error("there is room for so many alone")
	}
	b.Close()
}
