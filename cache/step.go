package cache

import (
	"context"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// Runner executes requests of one version; gateway/repository's Model fits.
type Runner interface {
	// Do executes req and answers it through send, on this goroutine.
	Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error
	// Turn waits until every request that came before has been answered. It is asked of
	// Subjects that are Ordered only.
	Turn(ctx context.Context, req *infer.Request) error
	// Current is the Subject that a request which came now would have; a Subject that
	// was replaced while a request ran makes its answer one that is not kept.
	Current() *Subject
}

// Step is the response cache as a step of a request's way.
type Step struct {
	level   Level
	quick   bool // level never waits
	keys    *Keys
	answers sync.Pool // of *answer
	flights flights
	held    *infer.Budget // nil: none
}

// NewStep makes the step over a level, which it closes with Close. held counts entries while
// responses made of them are held; nil: they are not counted.
func NewStep(level Level, held *infer.Budget) *Step {
	return &Step{level: level, quick: level.Quick(), keys: NewKeys(), held: held}
}

// Start is Do without waiting where it can: with a nil rest the request has been served
// out of the cache, or refused. Else rest serves it and may wait; it must be called once,
// and its result is Do's.
func (s *Step) Start(ctx context.Context, sub *Subject, r Runner, req *infer.Request, send infer.SendFunc) (rest func() error, err error) {
	if !s.quick || sub.Ordered || !cacheable(req) {
		return func() error { return s.Do(ctx, sub, r, req, send) }, nil
	}
	q, e := s.lookup(ctx, sub, req)
	if e == nil {
		return func() error {
			defer q.Done()
			return s.together(ctx, r, q, send)
		}, nil
	}
	defer q.Done()
	return nil, s.hit(ctx, e, r, q, send, infer.CacheHit)
}

// Do serves a validated request: from the cache, with the answer of an identical request
// that is being executed, or by r. Only a success that is whole is kept. Errors are those
// of r and of send.
func (s *Step) Do(ctx context.Context, sub *Subject, r Runner, req *infer.Request, send infer.SendFunc) error {
	if !cacheable(req) {
		return r.Do(ctx, req, func(resp *infer.Response) error {
			resp.Cache = infer.CacheBypass
			return send(resp)
		})
	}
	q, e := s.lookup(ctx, sub, req)
	defer q.Done()
	if e != nil {
		return s.hit(ctx, e, r, q, send, infer.CacheHit)
	}
	if sub.Ordered {
		return s.lead(ctx, r, q, send, nil)
	}
	return s.together(ctx, r, q, send)
}

// lookup looks for the entry of a request; nil: there is none. The caller gives the
// query back.
func (s *Step) lookup(ctx context.Context, sub *Subject, req *infer.Request) (*Query, *Entry) {
	start := infer.Now()
	req.Times.QueueStart = start // as in the original, where the lookup stands at the queue
	q := s.keys.Query(sub, req)
	q.Start = start
	e := s.level.Lookup(ctx, q)
	if q.End == 0 {
		q.End = infer.Now()
	}
	req.Times.CacheLookup = max(1, q.End-start)
	return q, e
}

// cacheable says that a request's answer depends on nothing but the request. Those of a
// sequence depend on the ones before.
func cacheable(req *infer.Request) bool {
	return req.Correlation.IsZero() && !req.SequenceStart && !req.SequenceEnd
}

// left is the answer to a caller that has gone, as a scheduler gives it.
func left(ctx context.Context, req *infer.Request) error {
	reason := infer.ReasonCancelled
	if ctx.Err() == context.DeadlineExceeded {
		reason = infer.ReasonDeadline
	}
	return infer.Refusef(infer.Cancelled, reason, "%srequest cancelled: %w", req.Prefix(), context.Cause(ctx))
}

func (s *Step) hit(ctx context.Context, e *Entry, r Runner, q *Query, send infer.SendFunc, status infer.CacheStatus) error {
	req := q.Request
	if q.Subject.Ordered {
		if err := r.Turn(ctx, req); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return left(ctx, req)
	}
	now := q.End
	if q.Subject.Ordered { // it has waited since
		now = infer.Now()
	}
	resp, err := s.response(e, req, now)
	if err != nil {
		return err
	}
	req.Times.CacheHit = true
	resp.Cache = status
	if status == infer.CacheCollapsed {
		resp.Age = 0
	}
	return send(resp)
}

// lead executes the request and keeps its answer. made, if there is one, is told of it
// before it is sent, so that nobody waits for a slow receiver.
func (s *Step) lead(ctx context.Context, r Runner, q *Query, send infer.SendFunc, made func(*Entry)) error {
	first := true
	return r.Do(ctx, q.Request, func(resp *infer.Response) error {
		resp.Cache = infer.CacheMiss
		if !first || !resp.Final {
			first = false
			return send(resp)
		}
		first = false
		start := infer.Now()
		if e := NewEntry(q, resp, start, q.Subject.TTL); e != nil {
			// What was loaded or purged meanwhile must not bring the answer back. A purge that
			// comes after this is the level's to see.
			if r.Current() == q.Subject && !q.Stale() {
				s.level.Insert(q, e)
			}
			if made != nil {
				made(e)
			}
		}
		q.Request.Times.CacheLookup += infer.Now() - start
		return send(resp)
	})
}

// Purge removes the entries that sel selects and says how many. An answer that is being
// made while it runs is not kept, and nobody who comes later waits for it.
func (s *Step) Purge(ctx context.Context, sel Selector) (int64, error) {
	s.keys.begun.Add(1)
	defer s.keys.ended.Add(1)
	return s.level.Purge(ctx, sel)
}

// Drop forgets what this process holds of one load of a version; it is called when the
// load has ended. No request finds these entries any more, so this only frees memory.
func (s *Step) Drop(ctx context.Context, load uint64) error {
	_, err := s.level.Purge(ctx, Selector{Load: load})
	return err
}

// Figures are those of the levels.
func (s *Step) Figures() []Figures { return s.level.Figures() }

// Close closes the level.
func (s *Step) Close(ctx context.Context) error { return s.level.Close(ctx) }
