package sequence

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// simple is what sequences are, without slots: the requests of each ID in order.
type simple struct {
	t       *testing.T
	m       *machine
	rng     *rand.Rand
	durable bool
	slots   int
	direct  bool

	state    map[*queue.Entry]string   // waiting, executed, refused
	seq      map[*queue.Entry]*history // what it belongs to
	living   map[key]*history          // whose next request needs no START
	of       map[*sequence]*history
	batches  int
	executed int
	last     int // number of requests
}

// history is one sequence.
type history struct {
	added  []*queue.Entry
	place  string // instance and row
	active int64
	dead   bool
}

func TestRandomSchedules(t *testing.T) {
	for _, oldest := range []bool{false, true} {
		for _, durable := range []bool{false, true} {
			t.Run(fmt.Sprintf("oldest=%v/durable=%v", oldest, durable), func(t *testing.T) {
				for seed := range uint64(60) {
					randomSchedule(t, seed, oldest, durable)
				}
			})
		}
	}
}

func randomSchedule(t *testing.T, seed uint64, oldest, durable bool) {
	rng := rand.New(rand.NewPCG(seed, 7))
	r := rules{slots: 1 + rng.IntN(4), instances: 1 + rng.IntN(3), limit: 12 + rng.IntN(2)*28,
		idle: int64(rng.IntN(3)) * 40, durable: durable, wait: int64(rng.IntN(2)) * 90}
	if !oldest && rng.IntN(2) == 0 {
		r.utilization, r.delay = 0.7, 15
	}
	if oldest {
		for range r.instances {
			r.cutters = append(r.cutters, dynamic.NewCutter(1+rng.IntN(4), nil, 0))
		}
	}
	s := &simple{t: t, m: newMachine(r), rng: rng, durable: durable, slots: r.slots, direct: !oldest, of: map[*sequence]*history{},
		state: map[*queue.Entry]string{}, seq: map[*queue.Entry]*history{}, living: map[key]*history{}}
	s.m.began, s.m.refused = s.began, s.refused
	s.m.limits.most = rng.IntN(2) * 4
	for range 400 {
		s.step()
		s.m.settle()
	}
	s.finish()
	if t.Failed() {
		t.Fatalf("seed %d", seed)
	}
}

func (s *simple) step() {
	s.m.now += int64(s.rng.IntN(12))
	switch n := s.rng.IntN(20); {
	case n < 10:
		s.add()
	case n < 17:
		s.end(false)
	case n < 18:
		s.end(true)
	case n < 19:
		s.cancel()
	default:
		i := s.rng.IntN(s.m.core.Count())
		if s.m.core.Busy(i) {
			return
		}
		if s.rng.IntN(3) == 0 {
			s.m.core.Down(i)
		}
		s.m.core.Up(i)
	}
}

func (s *simple) add() {
	id := uint64(1 + s.rng.IntN(7))
	s.last++
	q := &infer.Request{ID: fmt.Sprint(s.last), Correlation: infer.Correlation{ID: id}, SequenceStart: s.rng.IntN(4) == 0,
		SequenceEnd: s.rng.IntN(5) == 0}
	switch s.rng.IntN(4) {
	case 0:
		q.Tenant, q.Caller = "red", "ruth"
	case 1:
		q.Caller = "carol"
	}
	e := &queue.Entry{Rows: 1, Owner: q}
	if s.rng.IntN(8) == 0 {
		e.Key = []byte("other")
	}
	if s.rng.IntN(12) == 0 {
		e.Deadline = s.m.now + int64(s.rng.IntN(30))
	}
	s.state[e] = "waiting"
	before, full := s.m.core.Pending(), s.m.core.Full(e)
	s.m.add(e, q.ID)
	if s.state[e] != "waiting" {
		return
	}
	if s.m.core.Pending() != before+1 && !full {
		s.t.Errorf("%d wait, then %d", before, s.m.core.Pending())
	}
	h := s.of[of(e)]
	if h == nil {
		h = &history{}
		s.of[of(e)] = h
		s.checkNew(s.living[s.m.core.keyOf(q)], q)
	}
	h.added, h.active = append(h.added, e), s.m.now
	s.seq[e] = h
	if q.SequenceEnd {
		delete(s.living, s.m.core.keyOf(q))
	} else {
		s.living[s.m.core.keyOf(q)] = h
	}
}

// checkNew says whether a new sequence may begin though the last one of its ID, h, had no
// END: it had nothing to do, and was idle for too long or lost its state.
func (s *simple) checkNew(h *history, q *infer.Request) {
	if !q.SequenceStart {
		s.t.Errorf("%s begins a sequence without START", q.ID)
	}
	if h == nil || h.dead {
		return
	}
	for _, e := range h.added {
		if s.state[e] == "waiting" || s.state[e] == "running" {
			s.t.Errorf("%s begins a new sequence while %s is %s", q.ID, s.m.names[e], s.state[e])
		}
	}
	if idle := s.m.core.rules.idle; s.durable && (idle == 0 || s.m.now-h.active < idle) {
		s.t.Errorf("%s begins a new sequence, the last one has been idle for %d", q.ID, s.m.now-h.active)
	}
}

func (s *simple) began(i int, batch []*queue.Entry) {
	s.batches++
	real := 0
	for row, e := range batch {
		if e == s.m.core.null {
			continue
		}
		real++
		h := s.seq[e]
		s.started(h, e, i, row)
	}
	if real == 0 {
		s.t.Error("a batch of null requests")
	}
	if s.direct && len(batch) > s.slots {
		s.t.Errorf("%d rows of %d slots", len(batch), s.slots)
	}
}

func (s *simple) started(h *history, e *queue.Entry, i, row int) {
	name := s.m.names[e]
	if s.state[e] != "waiting" {
		s.t.Errorf("%s begins and was %s", name, s.state[e])
	}
	if h.dead {
		s.t.Errorf("%s begins and its sequence is over", name)
	}
	for _, other := range h.added {
		if other == e {
			break
		}
		if s.state[other] == "waiting" || s.state[other] == "running" {
			s.t.Errorf("%s begins while %s is %s", name, s.m.names[other], s.state[other])
		}
	}
	place := fmt.Sprint(i)
	if s.direct {
		place = fmt.Sprint(i, row)
	}
	if h.place != "" && h.place != place {
		s.t.Errorf("%s goes to %s, its sequence was on %s", name, place, h.place)
	}
	h.place = place
	s.state[e] = "running"
}

func (s *simple) refused(e *queue.Entry, err error) {
	if s.state[e] != "waiting" && s.state[e] != "running" {
		s.t.Errorf("%s is refused (%v) and was %s", s.m.names[e], err, s.state[e])
	}
	if h := s.seq[e]; h != nil && s.state[e] == "waiting" && err != errWorker { // the sequence goes on after a request that failed
		s.kill(h, e)
	}
	s.state[e] = "refused"
}

// kill ends a history: none of its requests may begin any more.
func (s *simple) kill(h *history, e *queue.Entry) {
	h.dead = true
	k := s.m.core.keyOf(e.Owner.(*infer.Request))
	if s.living[k] == h {
		delete(s.living, k)
	}
}

func (s *simple) end(lost bool) {
	for i, batch := range s.m.running {
		if lost {
			if s.durable {
				for _, e := range batch {
					if e != s.m.core.null {
						s.state[e] = "waiting"
					}
				}
			}
			s.m.lost(i)
			s.m.core.Up(i)
			return
		}
		s.m.core.Done(i, s.m.ended(i))
		for _, e := range batch {
			if e != s.m.core.null {
				if s.state[e] != "running" {
					s.t.Errorf("%s ends and was %s", s.m.names[e], s.state[e])
				}
				s.state[e] = "executed"
				s.executed++
				s.seq[e].active = s.m.now
			}
		}
		return
	}
}

func (s *simple) cancel() {
	for e, state := range s.state {
		if state == "waiting" && e.Waiting() {
			s.m.core.Remove(e)
			s.state[e] = "cancelled"
			if h := s.seq[e]; h != nil {
				s.kill(h, e)
			}
			return
		}
	}
}

// finish brings every batch to its end: nothing may be left, and every slot is free again.
func (s *simple) finish() {
	for range 10000 {
		s.m.now += 1000
		for i := range s.m.core.Count() {
			s.m.core.Up(i)
		}
		s.end(false)
		s.m.settle()
		if len(s.m.running) == 0 && s.m.core.Pending() == 0 {
			break
		}
		if len(s.m.running) == 0 { // the backlog waits for sequences that nobody ends
			for _, row := range s.m.core.slots {
				for _, q := range row {
					if q != nil && !q.waiting() && q.busy == nil {
						s.m.core.end(q, nil)
					}
				}
			}
			s.m.settle()
		}
	}
	for e, state := range s.state {
		if state == "waiting" || state == "running" {
			s.t.Errorf("%s is still %s", s.m.names[e], state)
		}
	}
	if s.executed == 0 || s.batches == 0 {
		s.t.Error("nothing was executed")
	}
	for _, q := range s.m.core.live {
		s.m.core.end(q, nil)
	}
	s.m.settle()
	if c := s.m.core; c.free != c.rules.slots*c.rules.instances || len(c.live) != 0 || c.backlog.n != 0 || c.idle.n != 0 {
		s.t.Errorf("%d of %d slots are free, %d sequences live, %d in the backlog, %d idle", c.free, c.rules.slots*c.rules.instances,
			len(c.live), c.backlog.n, c.idle.n)
	}
	s.checkCounts()
}

// checkCounts says whether anybody counts a sequence that is over.
func (s *simple) checkCounts() {
	h := &s.m.core.shares
	if len(h.named) != 0 || len(h.next) != 0 || h.nobody != (sharer{weight: h.nobody.weight, at: h.nobody.at}) {
		s.t.Errorf("%d sharers are left, %d wait; nobody has %+v", len(h.named), len(h.next), h.nobody)
	}
	for caller, n := range s.m.limits.callers {
		if n != 0 {
			s.t.Errorf("'%s' is said to have %d sequences", caller, n)
		}
	}
	if n := len(s.m.holds.all); n != 0 {
		s.t.Errorf("%d sequences are held", n)
	}
}
