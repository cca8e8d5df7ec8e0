package placements_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/gateway/placements"
	"github.com/sluice-serve/sluice/infer"
)

func placed(key string, epoch uint64) infer.PlacedSequence {
	return infer.PlacedSequence{Key: key, Epoch: epoch}
}

// A watcher is told all that lives, and then what changes, in order and once.
func TestWatch(t *testing.T) {
	var r placements.Registry
	r.Began(placed("a", 1))
	r.Began(placed("b", 2))
	all, w := r.Watch()
	defer w.Close()
	slices.SortFunc(all, func(a, b placements.Change) int { return cmp.Compare(a.Key, b.Key) })
	if got, want := fmt.Sprint(all), "[{{a 1} 0} {{b 2} 0}]"; got != want {
		t.Errorf("lives: %s, want %s", got, want)
	}
	r.Began(placed("a", 1)) // a second step of the ensemble has it
	r.Began(placed("c", 3))
	r.Began(placed("c", 2)) // late
	r.Ended(placed("a", 1), false)
	r.Ended(placed("a", 1), false)
	r.Began(placed("b", 4))
	r.Ended(placed("b", 2), false) // the older one's end, in another model
	r.Began(placed("b", 4))
	r.Ended(placed("b", 4), true) // one of its models lost it
	r.Ended(placed("b", 4), false)
	r.Ended(placed("nobody", 4), false)
	<-w.Changed()
	changes, err := w.Next()
	if got, want := fmt.Sprint(changes), "[{{c 3} 0} {{a 1} 1} {{b 4} 0} {{b 4} 2}]"; got != want || err != nil {
		t.Errorf("changes: %s, %v, want %s", got, err, want)
	}
	if changes, err := w.Next(); len(changes) > 0 || err != nil {
		t.Errorf("then %v, %v", changes, err)
	}
}

// What is kept for a watcher that does not read is bounded; others don't notice.
func TestWatcherFallsBehind(t *testing.T) {
	var r placements.Registry
	_, slow := r.Watch()
	defer slow.Close()
	_, quick := r.Watch()
	defer quick.Close()
	told := 0
	for i := range 70_000 {
		r.Began(placed(strconv.Itoa(i), 1))
		if i%1000 == 0 {
			changes, err := quick.Next()
			if err != nil {
				t.Fatal(err)
			}
			told += len(changes)
		}
	}
	if _, err := slow.Next(); err == nil || infer.CodeOf(err) != infer.ResourceExhausted {
		t.Errorf("the slow one: %v", err)
	}
	if changes, err := quick.Next(); err != nil || told+len(changes) != 70_000 {
		t.Errorf("the quick one was told %d times, %v", told+len(changes), err)
	}
	if all, w := r.Watch(); len(all) != 70_000 {
		t.Errorf("%d live", len(all))
	} else {
		w.Close()
	}
}

// Schedulers and watchers come and go at the same time.
func TestConcurrent(t *testing.T) {
	var r placements.Registry
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 500 {
				s := placed(strconv.Itoa(i), uint64(n+1))
				r.Began(s)
				r.Ended(s, n%2 == 0)
			}
		})
		all.Go(func() {
			for range 50 {
				lives, w := r.Watch()
				state := map[string]bool{}
				for _, c := range lives {
					state[c.Key] = true
				}
				changes, err := w.Next()
				if err != nil {
					t.Error(err)
				}
				for _, c := range changes {
					if lived := state[c.Key]; lived == (c.State == placements.Lives) {
						t.Errorf("%+v, though it lived: %v", c, lived)
					}
					state[c.Key] = c.State == placements.Lives
				}
				w.Close()
			}
		})
	}
	all.Wait()
}
