package workers

import (
	"math/rand/v2"
	"testing"
	"time"
)

// run lets c decide about n batches of so many requests, which take what cost says, and
// counts those that were executed request by request.
func (c *choice) run(n, requests int, cost func(apart bool) time.Duration) (apart int) {
	for range n {
		a := c.next(requests)
		if a {
			apart++
		}
		c.took(requests, requests, a, cost(a))
	}
	return apart
}

func costs(apart, whole time.Duration) func(bool) time.Duration {
	return func(a bool) time.Duration {
		if a {
			return apart
		}
		return whole
	}
}

func TestChoice(t *testing.T) {
	const us = time.Microsecond
	var c choice
	// Both kinds are measured, then every 64th batch tries the slower.
	if got := c.run(2*learnRuns, 3, costs(90*us, 180*us)); got != learnRuns {
		t.Errorf("%d of the first %d batches were executed apart, want %d", got, 2*learnRuns, learnRuns)
	}
	if got := c.run(640, 3, costs(90*us, 180*us)); got != 630 {
		t.Errorf("where that is faster, %d of 640 batches were executed apart, want 630", got)
	}
	// Other sizes are others' business.
	if got := c.run(648, 8, costs(900*us, 180*us)); got != learnRuns+10 {
		t.Errorf("where that is slower, %d of 648 batches were executed apart, want %d", got, learnRuns+10)
	}
	// One run while the kind is learnt that was cold, or put aside, is none of them.
	var cold choice
	n := 0
	cold.run(2*learnRuns, 3, func(a bool) time.Duration {
		if n++; n == 1 {
			return time.Second
		}
		return costs(90*us, 180*us)(a)
	})
	if got := cold.run(60, 3, costs(90*us, 180*us)); got < 59 {
		t.Errorf("after a cold run, %d of 60 batches were executed apart, which is faster", got)
	}
	// What changes is found out.
	c.run(64*20, 3, costs(400*us, 180*us))
	if got := c.run(640, 3, costs(400*us, 180*us)); got != 10 {
		t.Errorf("once it is slower, %d of 640 batches are executed apart, want 10", got)
	}
	// Single batches that take long, because the thread was put aside, change nothing.
	n = 0
	got := c.run(6400, 3, func(a bool) time.Duration {
		if n++; n%100 == 0 {
			return time.Second
		}
		return costs(400*us, 180*us)(a)
	})
	if got > 200 {
		t.Errorf("with outliers %d of 6400 batches are executed apart, want about 100", got)
	}
}

// Whatever the costs are, with noise on them, most batches go the cheaper way.
func TestChoiceFindsTheCheaper(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		apart, whole := 20+r.Float64()*400, 20+r.Float64()*400
		var c choice
		requests := 2 + r.IntN(40)
		got := c.run(2000, requests, func(a bool) time.Duration {
			v := whole
			if a {
				v = apart
			}
			return time.Duration(v * (0.9 + 0.2*r.Float64()) * float64(time.Microsecond))
		})
		if apart < 0.7*whole && got < 1900 || whole < 0.7*apart && got > 100 {
			t.Errorf("seed %d: at %.0f us apart and %.0f gathered, %d of 2000 batches were executed apart", seed, apart, whole, got)
		}
	}
}

func TestMeanOfNothing(t *testing.T) {
	var c choice
	c.took(1000, 0, true, time.Millisecond) // no rows, and more requests than paces
	if p := c.pace(1 << 20); p.apart.value != float64(time.Millisecond) {
		t.Errorf("the mean of one measurement is %v", p.apart.value)
	}
}
