package python

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// hookReady is the bit in LOADED of a model that has is_ready.
const hookReady = 16

// readyTimeout bounds the wait for an answer of is_ready.
// Source: kUserModelReadinessTimeoutMs of Triton's Python backend.
const readyTimeout = 5 * time.Second

// readiness is the question whether a process's model is ready. One is open at a time: who asks
// meanwhile gets the same answer.
type readiness struct {
	mu     sync.Mutex
	asked  uint64        // guarded by mu: questions so far
	open   chan struct{} // guarded by mu: closed when the last question is answered; nil: it is
	answer error         // valid when open is closed; nil: ready
}

// AsksReady fits backend.Asked.
func (in *instance) AsksReady() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.run != nil && in.run.loaded&hookReady != 0
}

// Ready fits backend.Asked.
func (in *instance) Ready(ctx context.Context) error {
	in.mu.Lock()
	r := in.run
	if r == nil || r.isGone() {
		in.mu.Unlock()
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s", unhealthy(in.name))
	}
	if r.loaded&hookReady == 0 {
		in.mu.Unlock()
		return nil
	}
	r.users.Add(1)
	in.mu.Unlock()
	defer r.users.Done()
	return r.ready(ctx)
}

// ready asks the model, or waits for the answer to the question that is open. The texts are Triton's.
func (r *run) ready(ctx context.Context) error {
	q := &r.readiness
	q.mu.Lock()
	text := "Timed out waiting for in-flight is_ready() response"
	if q.open == nil {
		text = "Timed out waiting for user-defined is_ready() response"
		if err := r.channel.Ask(); err != nil {
			q.mu.Unlock()
			return infer.Errorf(infer.Internal, "%w", err)
		}
		q.asked++
		q.open = make(chan struct{})
	}
	open := q.open
	q.mu.Unlock()
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	select {
	case <-open:
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.answer
	case <-late.C:
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s", text)
	case <-r.gone:
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s", unhealthy(r.name))
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "%w", context.Cause(ctx))
	}
}

// said deals with READINESS.
func (q *readiness) said(r *run, id uint64, d *channel.Decoder) error {
	ready, text := d.U8() != 0, d.String()
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.Err() == nil && (id != q.asked || q.open == nil) {
		d.Fail("an answer to question %d whether the model is ready, want %d", id, q.asked)
	}
	if d.Err() != nil {
		return d.Err()
	}
	switch {
	case text != "":
		q.answer = infer.Refusef(infer.Internal, infer.ReasonNotReady, "%s", text)
	case ready:
		q.answer = nil
	default:
		q.answer = infer.Refusef(infer.Unavailable, infer.ReasonNotReady,
			"Model '%s' is not ready (user-defined check failed).", r.name)
	}
	close(q.open)
	q.open = nil
	return nil
}
