package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestRandomSchedules checks three things at every step: no more of a resource is used
// than there is, the first in line waits for something that is really in use, and who
// waits gets its turn.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomSchedule(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

// simple is who holds what, as one would explain it.
type simple struct {
	t      *testing.T
	m      *machine
	holds  map[*share]bool
	waits  map[*share]int // grants to others since it began to wait
	shares []*share
}

func randomSchedule(t *testing.T, r *rand.Rand) {
	s := &simple{t: t, m: newMachine(nil), holds: map[*share]bool{}, waits: map[*share]int{}}
	for range 3000 {
		switch {
		case len(s.shares) < 3 || len(s.shares) < 9 && r.IntN(60) == 0:
			s.load(r)
		case r.IntN(80) == 0:
			s.unload(s.shares[r.IntN(len(s.shares))])
		default:
			s.step(r, s.shares[r.IntN(len(s.shares))])
		}
		for len(s.m.grants) > 0 {
			g := s.m.grants[r.IntN(len(s.m.grants))]
			if !s.m.accept(g) {
				t.Fatal("a grant that was told can't be accepted")
			}
			s.begin(g)
		}
		s.check()
	}
	for len(s.shares) > 0 {
		s.unload(s.shares[0])
		for len(s.m.grants) > 0 {
			g := s.m.grants[0]
			s.m.accept(g)
			s.begin(g)
		}
	}
	if len(s.m.line)+len(s.m.pools)+len(s.m.shares) > 0 {
		t.Error("something is left when everything is unloaded")
	}
}

func (s *simple) load(r *rand.Rand) {
	in := Instance{Priority: uint32(r.IntN(4))}
	for _, name := range []string{"R", "S", "T"} {
		if r.IntN(2) == 0 {
			in.Needs = append(in.Needs, Need{Name: name, Count: int64(r.IntN(4)), Device: r.IntN(2)})
		}
	}
	if r.IntN(3) == 0 {
		in.Needs = append(in.Needs, Need{Name: "G", Count: int64(r.IntN(3)), Device: Global})
	}
	all, err := s.m.add(nil, []Instance{in})
	if err != nil {
		s.t.Fatal(err)
	}
	s.shares = append(s.shares, all...)
}

func (s *simple) unload(x *share) {
	s.m.drop([]*share{x})
	s.shares = slices.DeleteFunc(s.shares, func(o *share) bool { return o == x })
	delete(s.holds, x)
	delete(s.waits, x)
}

func (s *simple) step(r *rand.Rand, x *share) {
	_, waits := s.waits[x]
	switch {
	case s.holds[x]:
		delete(s.holds, x)
		if r.IntN(8) == 0 {
			s.m.giveBack(x)
			return
		}
		again := r.IntN(2) == 0
		if s.m.done(x, again) {
			s.begin(x)
		} else if again {
			s.waits[x] = 0
		}
	case waits && r.IntN(10) == 0:
		s.m.withdraw(x)
		delete(s.waits, x)
	case !waits:
		if s.m.want(x) {
			s.begin(x)
		} else {
			s.waits[x] = 0
		}
	}
}

func (s *simple) begin(x *share) {
	if s.holds[x] {
		s.t.Fatal("granted twice")
	}
	s.holds[x] = true
	delete(s.waits, x)
	for other := range s.waits {
		if conflict(x, other) {
			s.waits[other]++
		}
	}
}

func conflict(a, b *share) bool {
	return slices.ContainsFunc(a.claims, func(c claim) bool {
		return slices.ContainsFunc(b.claims, func(d claim) bool { return c.pool == d.pool && c.count > 0 && d.count > 0 })
	})
}

func (s *simple) check() {
	s.t.Helper()
	used := map[*pool]int64{}
	for x := range s.holds {
		for _, c := range x.claims {
			used[c.pool] += c.count
		}
	}
	for _, p := range s.m.pools {
		if p.used != used[p] {
			s.t.Fatalf("%v: %d in use, but %d are held", p.key, p.used, used[p])
		}
	}
	if len(s.m.line) != len(s.waits) {
		s.t.Fatalf("%d in line, %d wait", len(s.m.line), len(s.waits))
	}
	if len(s.m.line) > 0 {
		first := s.m.line[0]
		if !slices.ContainsFunc(first.claims, func(c claim) bool { return used[c.pool]+c.count > c.pool.size }) {
			s.t.Fatal("the first in line could begin")
		}
	}
	for x, n := range s.waits {
		if n > 200 { // at most 9 instances, of priorities up to 3: far from it
			s.t.Fatalf("%d others were granted what one waits for with priority %d", n, x.stride)
		}
	}
}

// TestShares has two instances that always want, and counts their turns.
func TestShares(t *testing.T) {
	for _, priorities := range [][2]uint32{{1, 1}, {1, 2}, {1, 5}, {2, 3}} {
		m := newMachine(nil)
		var all []*share
		for _, p := range priorities {
			s, err := m.add(nil, []Instance{{Needs: []Need{{"R", 1, Global}}, Priority: p}})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s...)
		}
		turns := map[*share]int{}
		m.want(all[0])
		m.want(all[1])
		for range 6000 {
			i := slices.IndexFunc(all, func(s *share) bool { return s.state == held })
			turns[all[i]]++
			m.done(all[i], true)
			for len(m.grants) > 0 {
				m.accept(m.grants[0])
			}
		}
		got := float64(turns[all[0]]) / float64(turns[all[1]])
		want := float64(priorities[1]) / float64(priorities[0])
		if got < want*0.99 || got > want*1.01 {
			t.Errorf("priorities %v: %.3f turns of the first for one of the second, want %.3f", priorities, got, want)
		}
	}
}

// TestMembersUnderConcurrency has models that lock as schedulers do, and checks that
// what they share is never held twice and that all get on.
func TestMembersUnderConcurrency(t *testing.T) {
	const models, each = 6, 300
	l := New([]Resource{{Name: "r", Count: 2, Device: Every}})
	var (
		inUse, most atomic.Int64
		wg          sync.WaitGroup
	)
	for k := range models {
		turn := make(chan struct{}, 1)
		var (
			mu  sync.Mutex
			m   *Member
			err error
		)
		granted := func(i int) {
			mu.Lock()
			ok := m.Accept(i)
			mu.Unlock()
			if ok {
				turn <- struct{}{}
			}
		}
		m, err = l.Register([]Instance{{Needs: []Need{{"R", int64(1 + k%2), 0}}, Priority: uint32(k)}}, granted)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer m.Close()
			for n := range each {
				mu.Lock()
				ok := m.Want(0)
				mu.Unlock()
				m.Flush()
				if !ok {
					select {
					case <-turn:
					case <-time.After(20 * time.Second):
						t.Errorf("model %d starves after %d turns", k, n)
						return
					}
				}
				most.Store(max(most.Load(), inUse.Add(int64(1+k%2))))
				inUse.Add(-int64(1 + k%2))
				mu.Lock()
				if n%5 == 0 {
					m.Return(0)
				} else {
					m.Done(0, false)
				}
				mu.Unlock()
				m.Flush()
			}
		})
	}
	wg.Wait()
	if most.Load() > 2 {
		t.Errorf("%d were in use at one time, there are 2", most.Load())
	}
	if len(l.m.shares) > 0 {
		t.Error("instances are left")
	}
}

func TestNothingNeeded(t *testing.T) {
	if Needed([]Instance{{Priority: 3}, {}}) {
		t.Error("instances without resources are limited")
	}
	if !Needed([]Instance{{}, {Needs: []Need{{"R", 1, 0}}}}) {
		t.Error("an instance with a resource is not limited")
	}
}
