package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// some lets a batch be the first few.
type some struct{ rand *rand.Rand }

func (s some) Cut(head *Entry, _ int64) (n int, wake int64) {
	for e := head; e != nil && n < 1+s.rand.IntN(3); e = e.Next() {
		n++
	}
	return n, 0
}

// simple is the waiting lines as one would explain them: entries in the order in which
// they came or were delayed.
type simple struct {
	cfg     Lines
	entries []*Entry
	delayed map[*Entry]bool
}

// first is what leaves next without fairness.
func (s *simple) first() *Entry {
	rank := func(e *Entry) (uint64, bool) { return e.Level, s.delayed[e] }
	var best *Entry
	for _, e := range s.entries {
		if best == nil {
			best = e
			continue
		}
		level, delayed := rank(e)
		bestLevel, bestDelayed := rank(best)
		if level < bestLevel || level == bestLevel && bestDelayed && !delayed {
			best = e
		}
	}
	return best
}

func (s *simple) remove(t *testing.T, e *Entry) {
	t.Helper()
	i := slices.Index(s.entries, e)
	if i < 0 {
		t.Fatalf("entry %v left twice, or never came", e.Owner)
	}
	s.entries = slices.Delete(s.entries, i, i+1)
	delete(s.delayed, e)
}

func (s *simple) delay(e *Entry) {
	i := slices.Index(s.entries, e)
	s.entries = append(slices.Delete(s.entries, i, i+1), e)
	s.delayed[e] = true
}

func (s *simple) count(level uint64) (n int) {
	for _, e := range s.entries {
		if e.Level == level {
			n++
		}
	}
	return n
}

// unfair says what is wrong with who gives way to e in a full line; "": nothing.
func (s *simple) unfair(e, rival *Entry) string {
	counts, weights := map[string]int{e.Caller: 0}, map[string]int{e.Caller: max(e.Weight, 1)}
	newest := map[string]*Entry{}
	for _, o := range s.entries {
		if o.Level == e.Level {
			counts[o.Caller]++
			weights[o.Caller] = max(o.Weight, 1)
			if last := newest[o.Caller]; last == nil || o.Owner.(int) > last.Owner.(int) {
				newest[o.Caller] = o
			}
		}
	}
	all := 0
	for _, w := range weights {
		all += w
	}
	limit := s.cfg.of(e.Level).Limit
	// with e its caller has no more than his part of the line
	want := float64(counts[e.Caller]+1) <= float64(limit)*float64(weights[e.Caller])/float64(all)
	switch {
	case want != (rival != nil):
		return fmt.Sprintf("%q has %d of %v waiting in a line of %d, and gets room: %v", e.Caller, counts[e.Caller], weights, limit, rival != nil)
	case rival == nil:
		return ""
	case newest[rival.Caller] != rival:
		return fmt.Sprintf("entry %v is not the newest of %q", rival.Owner, rival.Caller)
	}
	for who, n := range counts {
		if n*weights[rival.Caller] > counts[rival.Caller]*weights[who] {
			return fmt.Sprintf("%q gives way with %d, and %q has %d, of %v", rival.Caller, counts[rival.Caller], who, n, weights)
		}
	}
	return ""
}

func TestRandomLines(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := Lines{Default: Line{Limit: 20, Delays: seed%2 == 1}, Own: map[uint64]Line{2: {Limit: 3, Delays: seed%4 < 2}}}
			if seed%3 == 2 {
				cfg.Fair = 1 + int(seed%5)
			}
			randomLines(t, cfg, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func randomLines(t *testing.T, cfg Lines, r *rand.Rand) {
	core := New(some{r}, cfg, 2)
	want := &simple{cfg: cfg, delayed: map[*Entry]bool{}}
	running := map[int][]*Entry{}
	levels := uint64(1 + r.IntN(90)) // more than are kept when empty
	var now int64
	added, over := 0, 0
	for step := range 3000 {
		now += int64(r.IntN(3))
		switch k := r.IntN(10); {
		case k < 5:
			e := &Entry{Rows: 1, Level: 1 + r.Uint64N(levels), At: now, Owner: step}
			if who := r.IntN(6); who > 0 {
				e.Caller, e.Weight = fmt.Sprint("caller", who), who/2
			}
			if r.IntN(2) == 0 {
				e.Deadline = now + 1 + int64(r.IntN(30))
			}
			if full := want.count(e.Level) >= cfg.of(e.Level).Limit; core.Full(e) != full {
				t.Fatalf("step %d: full %v, want %v", step, !full, full)
			} else if full {
				rival := core.Yields(e)
				if fault := want.unfair(e, rival); fault != "" {
					t.Fatalf("step %d: %s", step, fault)
				}
				if rival != nil {
					core.Remove(rival)
					want.remove(t, rival)
					over++
				}
			}
			if want.count(e.Level) < cfg.of(e.Level).Limit {
				core.Add(e)
				want.entries = append(want.entries, e)
				added++
			}
		case k == 5 && len(want.entries) > 0:
			e := want.entries[r.IntN(len(want.entries))]
			core.Remove(e)
			want.remove(t, e)
			over++
		case k > 5:
			for i, batch := range running {
				core.Done(i, batch)
				delete(running, i)
				break
			}
		}
		over += expire(t, core, want, now)
		over += leave(t, core, want, now, running)
		if core.Pending() != len(want.entries) {
			t.Fatalf("step %d: %d wait, want %d", step, core.Pending(), len(want.entries))
		}
	}
	for e := core.Any(); e != nil; e = core.Any() {
		want.remove(t, e)
		over++
	}
	if added != over || len(want.entries) > 0 {
		t.Errorf("%d entries came, %d left, %d are forgotten", added, over, len(want.entries))
	}
}

// expire does the model's part in order of the deadlines, as the core does.
func expire(t *testing.T, core *Core, want *simple, now int64) (rejected int) {
	t.Helper()
	var due []*Entry
	for _, e := range want.entries {
		if e.Deadline > 0 && e.Deadline <= now && !want.delayed[e] {
			due = append(due, e)
		}
	}
	got := map[*Entry]bool{}
	for e := core.Expire(now); e != nil; e = core.Expire(now) {
		got[e] = true
	}
	slices.SortStableFunc(due, func(a, b *Entry) int { return int(a.Deadline - b.Deadline) })
	var moved []*Entry
	for _, e := range due {
		if want.cfg.of(e.Level).Delays {
			moved = append(moved, e)
			continue
		}
		if !got[e] {
			t.Fatalf("entry %v was not rejected in time", e.Owner)
		}
		want.remove(t, e)
		rejected++
	}
	// Of equal deadlines any order will do: the model takes the core's.
	slices.SortStableFunc(moved, func(a, b *Entry) int {
		if a.Deadline != b.Deadline {
			return int(a.Deadline - b.Deadline)
		}
		return position(core, a) - position(core, b)
	})
	for _, e := range moved {
		want.delay(e)
	}
	if len(got) != rejected {
		t.Fatalf("%d entries were rejected, want %d", len(got), rejected)
	}
	return rejected
}

func position(core *Core, e *Entry) (n int) {
	for at := core.line.order.head; at != e; at = at.next {
		n++
	}
	return n
}

// leave checks every batch that may leave now.
func leave(t *testing.T, core *Core, want *simple, now int64, running map[int][]*Entry) (n int) {
	t.Helper()
	for {
		batch, i := core.Next(now, nil)
		if i < 0 {
			return n
		}
		if running[i] != nil {
			t.Fatalf("instance %d has two batches", i)
		}
		running[i] = batch
		for k, e := range batch {
			if first := want.first(); e != first && (k > 0 || want.cfg.Fair == 0) {
				t.Fatalf("entry %v of level %d left before %v of level %d", e.Owner, e.Level, first.Owner, first.Level)
			}
			want.remove(t, e)
			n++
		}
	}
}

// TestFairnessEndsStarvation keeps the first level full for ever.
func TestFairnessEndsStarvation(t *testing.T) {
	for _, fair := range []int{0, 1, 4} {
		core := New(one{}, Lines{Default: Line{Limit: 10}, Fair: fair}, 1)
		low := &Entry{Rows: 1, Level: 3}
		core.Add(low)
		batches := 0
		for batches = 1; batches < 50; batches++ {
			core.Add(&Entry{Rows: 1, Level: 1, At: int64(batches)})
			batch, i := core.Next(int64(batches), nil)
			if i < 0 {
				t.Fatal("nothing left")
			}
			core.Done(i, batch)
			if batch[0] == low {
				break
			}
		}
		want := fair
		if fair == 0 {
			want = 50 // the original starves it
		}
		if batches != want {
			t.Errorf("fair %d: the low level's request left with batch %d, want %d", fair, batches, want)
		}
	}
}

type one struct{}

func (one) Cut(*Entry, int64) (int, int64) { return 1, 0 }
