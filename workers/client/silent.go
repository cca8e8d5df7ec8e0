package client

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// A worker fails open requests of which nothing is heard for too long, or should: one that
// forgets some is found here. Such a request is failed, and what the worker sends for it later
// is dropped. It counts as open until the worker ends its batch or is lost, so that there are
// never more than the worker said. Its inputs are kept as long where the worker shares the
// memory they lie in, as it may still read them. Other workers have copies: once all requests
// of a batch have their answers or were failed, the scheduler has the batch's end.

// How much longer than the worker's own limits those are which are kept here: of the open request
// timeout, but no more than that itself; and, where a request has a timeout of its own, of that.
const (
	silenceGrace = 30 * time.Second
	ownGrace     = 60 * time.Second
)

// silence is what is known of one open request.
type silence struct {
	since    int64 // when something was heard of it, as far as it was looked at; infer.Now
	deadline int64 // of its own timeout; 0: it has none
	heard    bool  // it was answered since it was looked at
	failed   bool  // it was silent for too long
}

// overdue is how long nothing was heard of the request, and whether that is too long.
func (s *silence) overdue(now int64, most time.Duration) (age time.Duration, is bool) {
	age = time.Duration(now - s.since)
	if s.deadline > 0 {
		return age, now-max(s.since, s.deadline) >= int64(ownGrace)
	}
	return age, age >= most+min(most, silenceGrace)
}

// check says what is wrong with a result, before it is read with its batch's requests, and
// drops what it has for requests that were failed.
func (e *executor) check(b *infer.Batch, done *answered, o *open) error {
	if o != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		o.hear(&e.result)
	}
	if err := checkRead(&e.result, o); err != nil {
		return err
	}
	return done.check(&e.result, b)
}

func (o *open) hear(w *wire.Result) {
	if o.silences == nil {
		return
	}
	if o.silent || len(o.silences) == 1 && o.silences[0].failed {
		w.Outputs, w.Responses = w.Outputs[:0], w.Responses[:0]
		return
	}
	late := func(i int) bool { return i >= 0 && i < len(o.silences) && o.silences[i].failed }
	w.Responses = slices.DeleteFunc(w.Responses, func(r wire.Response) bool { return late(r.Index) })
	for i := range w.Responses {
		if k := w.Responses[i].Index; k >= 0 && k < len(o.silences) {
			o.silences[k].heard = true
		}
	}
	if !w.More { // its batch is about to end
		for i := range o.silences {
			o.silences[i].heard = true
		}
	}
}

// lookLocked notes what was heard since the last time, and says whether a request is overdue.
func (o *open) lookLocked(now int64, most time.Duration) (overdue bool) {
	if o.silent {
		return false
	}
	if o.silences == nil {
		o.silences = make([]silence, len(o.batch.Requests))
		for i, q := range o.batch.Requests {
			s := &o.silences[i]
			s.heard = true
			if o.answered.has(o.batch.ID, i) {
				continue // and nothing is read of it
			}
			if t := timeLeft(q); t > 0 {
				s.deadline = now + t
			}
		}
	}
	for i := range o.silences {
		s := &o.silences[i]
		if s.heard {
			s.since, s.heard = now, false
		}
		if s.failed || o.answered.has(o.batch.ID, i) {
			continue
		}
		_, is := s.overdue(now, most)
		overdue = overdue || is
	}
	return overdue
}

// silentRequest is a request that was failed.
type silentRequest struct {
	id  string
	age time.Duration
}

// failSilent fails the open requests of which nothing was heard for too long. shares says that
// the worker shares memory.
func (e *executor) failSilent(now int64, most time.Duration, shares bool) (failed []silentRequest) {
	e.mu.Lock()
	var late []*open
	for _, o := range e.opens.all {
		if o.lookLocked(now, most) {
			late = append(late, o)
		}
	}
	e.mu.Unlock()
	for _, o := range late {
		failed = append(failed, e.failLate(o, now, most, shares)...)
	}
	return failed
}

func (e *executor) failLate(o *open, now int64, most time.Duration, shares bool) (failed []silentRequest) {
	o.turn.Lock()
	defer o.turn.Unlock()
	e.mu.Lock()
	if !slices.Contains(e.opens.all, o) { // it has ended meanwhile
		e.mu.Unlock()
		return nil
	}
	b, r := o.batch, &infer.Result{More: true}
	o.silent = true
	for i := range o.silences {
		s := &o.silences[i]
		if s.failed || o.answered.has(b.ID, i) {
			continue
		}
		age, is := s.overdue(now, most)
		if !is || s.heard {
			o.silent = false
			continue
		}
		s.failed = true
		r.Responses = append(r.Responses, infer.RequestResult{Index: i,
			Err: infer.Errorf(infer.Internal, "the model gave no answer for %v, and its request is failed",
				age.Round(time.Millisecond))})
		failed = append(failed, silentRequest{id: strings.Clone(b.Requests[i].ID), age: age})
		if e.link != nil {
			e.link.cancel(b.ID, o.flags, i)
		}
		e.desk.endRequest(b.ID, uint32(i))
	}
	desk := e.desk
	if o.silent && !shares {
		o.batch = &infer.Batch{ID: b.ID, Requests: make([]*infer.Request, len(b.Requests))} // the scheduler's is let go of
		o.ended = true
	}
	e.overLocked()
	e.mu.Unlock()
	if r.Responses != nil {
		b.Deliver(r)
	}
	if o.ended {
		desk.endBatch(b.ID)
		b.Deliver(&infer.Result{Err: infer.Errorf(infer.Internal, "the model gave no answer")})
	}
	return failed
}

// failSilent fails the open requests of the worker's instances of which nothing was heard for
// too long.
func (w *worker) failSilent(now int64) {
	w.mu.Lock()
	groups := w.groupsLocked()
	shares := w.session == nil || w.session.memory != nil
	w.mu.Unlock()
	for _, g := range groups {
		for _, e := range g.executors {
			for _, r := range e.failSilent(now, w.owner.cfg.OpenTimeout, shares) {
				w.log.Error("a worker kept a request open, and nothing was heard of it: it is failed",
					"model", g.spec.Name, "version", g.spec.Version,
					"instance", e.instance, "request_id", r.id, "silent", r.age)
			}
		}
	}
}
