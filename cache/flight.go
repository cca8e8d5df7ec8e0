package cache

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

const (
	flightShards = 64
	// maxFollowers bounds who waits for one flight; further requests go their own way, to
	// the model's queue and its limits.
	maxFollowers = 4096
	// maxFailures is how many leaders of one flight may fail, or leave, before all that
	// wait go their own way: a model that fails must not serve them one by one, and who
	// is patient must not wait for one impatient leader after the other.
	maxFailures = 3
)

// flightKey says which requests fly together. Those with other priorities or queue
// timeouts don't, so nobody waits for one that may wait longer than he.
type flightKey struct {
	key      Key
	priority uint64
	timeout  time.Duration
	epoch    uint64 // purges: who comes after one does not get an answer from before
}

// flights are the executions that others wait for.
type flights struct {
	shards [flightShards]flightShard
}

type flightShard struct {
	mu sync.Mutex
	m  map[flightKey]*flight // made with the first
}

// flight is one execution. The one who leads it takes it out of the map when he is done
// or hands it to a follower.
type flight struct {
	followers int           // shard's mu
	failures  int           // shard's mu
	next      chan struct{} // room for one: who receives from it leads
	done      chan struct{} // closed when entry is there or nobody leads any more
	entry     *Entry        // before done is closed; nil: go your own way
}

func (f *flights) shard(k *flightKey) *flightShard { return &f.shards[k.key.Spread()%flightShards] }

// join finds or begins the flight. lead says that the caller leads it. A flight that is
// full is nil.
func (s *flightShard) join(k flightKey) (fl *flight, lead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl = s.m[k]; fl == nil {
		if s.m == nil {
			s.m = map[flightKey]*flight{}
		}
		fl = &flight{}
		s.m[k] = fl
		return fl, true
	}
	if fl.followers >= maxFollowers {
		return nil, false
	}
	if fl.done == nil {
		fl.next, fl.done = make(chan struct{}, 1), make(chan struct{})
	}
	fl.followers++
	return fl, false
}

// land ends the leader's part. With an entry, or after too many leaders without one, the
// flight is over; else a follower leads, if there is one.
func (s *flightShard) land(k flightKey, fl *flight, e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e == nil {
		fl.failures++
	}
	if e == nil && fl.followers > 0 && fl.failures < maxFailures {
		fl.next <- struct{}{} // empty: there is one leader
		return
	}
	fl.entry = e
	delete(s.m, k)
	if fl.done != nil {
		close(fl.done)
	}
}

// leave takes a follower out who does not wait any more. If the lead was offered and
// nobody is left to take it, the flight is over.
func (s *flightShard) leave(k flightKey, fl *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fl.followers--
	if fl.followers > 0 {
		return
	}
	select {
	case <-fl.next:
		delete(s.m, k)
	default: // somebody leads, or it is over
	}
}

// promote makes a follower who has received from next the leader.
func (s *flightShard) promote(fl *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fl.followers--
}

// together executes a request once for all identical ones that come meanwhile. Each
// waits no longer than its own context.
func (s *Step) together(ctx context.Context, r Runner, q *Query, send infer.SendFunc) error {
	k := flightKey{q.Key, q.Request.Priority, q.Request.Timeout, q.epoch}
	shard := s.flights.shard(&k)
	fl, lead := shard.join(k)
	switch {
	case fl == nil:
		return s.lead(ctx, r, q, send, nil)
	case lead:
		return s.fly(ctx, r, q, send, k, fl)
	}
	select {
	case <-fl.done:
	case <-fl.next:
		shard.promote(fl)
		return s.fly(ctx, r, q, send, k, fl)
	case <-ctx.Done():
		shard.leave(k, fl)
		return left(ctx, q.Request)
	}
	if fl.entry != nil {
		return s.hit(ctx, fl.entry, r, q, send, infer.CacheCollapsed)
	}
	return s.lead(ctx, r, q, send, nil)
}

// fly leads a flight to its end, whatever that is.
func (s *Step) fly(ctx context.Context, r Runner, q *Query, send infer.SendFunc, k flightKey, fl *flight) error {
	shard := s.flights.shard(&k)
	landed := false
	defer func() { // also after a panic
		if !landed {
			shard.land(k, fl, nil)
		}
	}()
	return s.lead(ctx, r, q, send, func(e *Entry) {
		landed = true
		shard.land(k, fl, e)
	})
}
