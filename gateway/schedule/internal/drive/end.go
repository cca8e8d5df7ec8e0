package drive

import (
	"errors"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// deliver is Batch.Deliver.
func (b *batch) deliver(res *infer.Result) {
	d := b.d
	now := d.deps.Clock.Now()
	t := b.timesAt(now, res.Compute)
	if res.More {
		b.part(res, t, now)
		return
	}
	lost := res.Err != nil && errors.Is(res.Err, infer.ErrWorkerLost)
	if b.trace != nil {
		b.traced(res, now)
	}
	e := ending{res: res, times: t, early: repeats(res)}
	if !b.end(now, lost, &e) {
		res.Memory.Release() // it had an end before
		d.carry(&e.news)
		return
	}
	b.conclude(&e)
}

// failed ends a batch that can't be posted. It gives the batches that follow to its
// caller, which posts them: a long line of such batches must not nest.
func (b *batch) failed() *batch {
	now := b.d.deps.Clock.Now()
	res := &infer.Result{Err: b.fault}
	if b.trace != nil {
		b.traced(res, now)
	}
	e := ending{res: res, times: b.timesAt(now, infer.ComputeTimes{})}
	ended := b.end(now, false, &e)
	posts := e.posts
	e.posts = nil
	if !ended {
		b.d.carry(&e.news)
		return posts
	}
	b.conclude(&e)
	return posts
}

// ending is a batch that has ended, while others hear of it.
type ending struct {
	news
	res   *infer.Result
	times times
	again []bool // which items will be tried again; nil: none
	// halted is why items that ask to be executed again are not, where the core says why.
	halted map[int]error
	early  bool // its answers go before the next batch: what that answers comes behind them
}

// conclude is what follows when a batch has ended. Each step is taken, whatever became of the
// steps before it.
func (b *batch) conclude(e *ending) {
	d := b.d
	if e.fault != nil {
		b.release(e.again)
	}
	if e.early {
		d.step(func() { b.hand(e.res, e.times) })
	}
	d.step(func() { d.post(e.posts) })
	d.step(func() { b.observed(e) })
	if !e.early {
		d.step(func() { b.hand(e.res, e.times) })
	}
	d.step(func() { b.settle(e) })
	d.step(b.letGo)
	if e.late != nil {
		d.tell(e.late)
	}
	d.carryRest(&e.news)
}

// step takes one step of a batch's end. A panic of it goes no further.
func (d *Driver) step(f func()) {
	defer d.caught("the end of a batch met a fault")
	f()
}

// observed tells the observer of a batch that has ended.
func (b *batch) observed(e *ending) {
	if e.delta != 0 {
		b.d.queued(e.delta)
	}
	if o := b.d.deps.Observer; o != nil && e.res.Err == nil {
		o.Executed(len(b.Requests)-b.nulls, b.executedRows(), e.times.compute())
	}
}

// end frees the instance and forms the next batches, and notes which items will be tried
// again. ended is false where the batch had ended before.
func (b *batch) end(now int64, lost bool, e *ending) (ended bool) {
	d, res := b.d, e.res
	d.mu.Lock()
	defer d.unlock(&e.news)
	if b.ended {
		return false
	}
	b.ended, ended = true, true
	d.settling.Add(1)
	d.inflight.remove(b)
	if !b.freed {
		d.limits.ending = b.instance + 1
	}
	entries := b.entriesLocked()
	if b.stage != nil {
		b.stageLocked(entries, res)
	}
	if b.era != d.era {
		entries = nil // another core's
	}
	switch {
	case b.freed && lost:
		d.downLocked(b.instance, b.life)
	case b.freed: // what it was to its instance has ended before
	case lost:
		d.health.Lost(b.instance, b.life)
		d.core.Lost(b.instance, b.life, entries)
	default:
		d.health.Done(b.instance)
		d.core.Done(b.instance, entries)
	}
	if lost || e.early {
		e.again = make([]bool, len(b.items))
	}
	switch {
	case entries == nil || e.again == nil:
	case lost:
		for i, it := range b.items {
			e.again[i] = b.retryLocked(it)
		}
	default:
		b.repeatLocked(e)
	}
	if b.freed {
		d.nextLocked(now) // for what is tried again
	} else {
		d.freedLocked(b.instance, now)
	}
	b.releaseLocked(e.again)
	if lost {
		d.servedLocked(now)
	}
	e.whole = true
	return true
}

// entriesLocked are the items as a core and a stage know them, until the driver forms a batch.
func (b *batch) entriesLocked() []*queue.Entry {
	entries := b.d.scratch[:0]
	for _, it := range b.items {
		entries = append(entries, &it.Entry)
	}
	b.d.scratch = entries[:0]
	return entries
}

// releaseLocked gives back the memory of the items that are not tried again.
func (b *batch) releaseLocked(again []bool) {
	for i, it := range b.items {
		if !it.null && (again == nil || !again[i]) {
			it.batch = nil
			b.d.layout.release(it)
		}
	}
}

// release is releaseLocked after a panic.
func (b *batch) release(again []bool) {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	quietly(func() { b.releaseLocked(again) })
}

// retryLocked puts an item back into the line if it may be tried again: it belongs to
// no sequence whose state was lost, no answer of it was sent, its inputs are there, someone waits for it, and it is its
// first loss.
func (b *batch) retryLocked(it *item) bool {
	d := b.d
	if sent, _ := it.state(); sent || b.read || it.left || it.null || !it.req.Correlation.IsZero() && !d.cfg.Sequences {
		return false
	}
	if !d.core.Again(&it.Entry) {
		d.logLost(it)
		return false
	}
	it.batch = nil
	d.waiting.add(it)
	return true
}
