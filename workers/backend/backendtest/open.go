package backendtest

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// openTime is how long the answers of a kept batch may take in a test.
const openTime = 20 * time.Second

// openBatch is a Batch that was kept; it fits backend.Open. The batch's mu guards it.
type openBatch struct {
	b     *Batch
	over  chan struct{} // closed when all requests have their final answers
	tells []func(cause error)
	lost  []bool // failed by the worker
}

// Keep fits backend.Batch.
func (b *Batch) Keep() (backend.Open, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept != nil || b.ended || b.final() {
		return nil, b.fault("Keep of a batch that is kept, or has all its answers")
	}
	b.kept = &openBatch{b: b, over: make(chan struct{}), tells: make([]func(error), len(b.own)),
		lost: make([]bool, len(b.own))}
	return b.kept, nil
}

// Kept says that the batch was kept.
func (b *Batch) Kept() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept != nil
}

// Wait waits until a batch that was kept has ended.
func (b *Batch) Wait() {
	if b.kept == nil {
		return
	}
	t := time.NewTimer(openTime)
	defer t.Stop()
	select {
	case <-b.kept.over:
	case <-t.C:
		b.mu.Lock()
		defer b.mu.Unlock()
		_ = b.fault("a kept batch has not ended after %v", openTime)
	}
}

// Abandon fails request i of a kept batch as a worker does that has not heard of it for too
// long.
func (b *Batch) Abandon(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.kept
	if b.answers[i].Final {
		return
	}
	b.own[i].cancelled.Store(true)
	b.answers[i].Err, b.answers[i].Final = infer.Errorf(infer.Internal, "nothing was heard of the request"), true
	o.lost[i] = true
	o.tell(i)
	o.settle()
}

// misuse notes that a kept batch was used in place of what Keep gave.
func (b *Batch) misuse() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault("a method of the batch was called after Keep")
}

// final says that all requests have their final answers.
func (b *Batch) final() bool {
	for i := range b.answers {
		if !b.answers[i].Final {
			return false
		}
	}
	return true
}

// left is the end of Execute.
func (o *openBatch) left(err error) {
	b := o.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.answers {
		if a := &b.answers[i]; err != nil && !a.Final {
			a.Err, a.Final = err, true
		}
	}
	o.settle()
}

func (o *openBatch) settle() {
	if o.b.final() && !o.b.ended {
		o.b.ended = true
		close(o.over)
	}
}

func (o *openBatch) tell(i int) {
	if f := o.tells[i]; f != nil && (!o.b.answers[i].Final || o.lost[i]) {
		o.tells[i] = nil
		go f(infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")) // as a worker does
	}
}

func (o *openBatch) isLost(i int) bool { return i >= 0 && i < len(o.lost) && o.lost[i] }

// Requests fits backend.Open.
func (o *openBatch) Requests() []backend.Request { return o.b.requests }

// Alloc fits backend.Open.
func (o *openBatch) Alloc(n int64) ([]byte, error) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.b.ended {
		return nil, infer.Errorf(infer.Internal, "the batch has ended")
	}
	return o.b.alloc(n)
}

// Respond fits backend.Open.
func (o *openBatch) Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.isLost(i) {
		return nil
	}
	defer o.settle()
	return o.b.respond(i, outputs, params, final)
}

// Fail fits backend.Open.
func (o *openBatch) Fail(i int, err error) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.isLost(i) {
		return nil
	}
	defer o.settle()
	return o.b.fail(i, err)
}

// RespondError fits backend.Open.
func (o *openBatch) RespondError(i int, err error) (open bool, fault error) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.isLost(i) {
		return false, nil
	}
	return o.b.respondError(i, err)
}

// InferDone fits backend.Open.
func (o *openBatch) InferDone(i int) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if i < 0 || i >= len(o.tells) {
		_ = o.b.fault("InferDone of request %d, which the batch does not have", i)
	}
	o.b.InferMarks++
}

// Watch fits backend.Open.
func (o *openBatch) Watch(i int, f func(cause error)) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if i < 0 || i >= len(o.tells) || o.b.answers[i].Final {
		return
	}
	if o.tells[i] = f; o.b.own[i].cancelled.Load() {
		o.tell(i)
	}
}

// ReleaseAll fits backend.Open: nobody else has the inputs.
func (o *openBatch) ReleaseAll() { o.Release() }

// Release fits backend.Open. The inputs are gone afterwards, so that who reads them is found
// out.
func (o *openBatch) Release() {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.b.ended {
		return
	}
	for _, r := range o.b.own {
		for k := range r.Request.Inputs {
			r.Request.Inputs[k].Data = nil
		}
	}
	for k := range o.b.inputs {
		o.b.inputs[k].Data = nil
	}
}
