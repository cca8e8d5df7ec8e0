package drive

import (
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// expired is the error of an entry that Expire took out.
func (d *Driver) expired(e *queue.Entry) error {
	if err := d.core.Verdict(e); err != nil {
		return err
	}
	return errExpired()
}

// errExpired has the text of Triton's dynamic batch scheduler.
func errExpired() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonQueueTimeout, "Request timeout expired")
}

// stageLocked shows a result to the batch's stage.
func (b *batch) stageLocked(entries []*queue.Entry, res *infer.Result) {
	if b.endStage(entries, res); res.Err != nil && res.More {
		b.fault = res.Err // nobody hears of a part's
	}
	if b.fault != nil && res.Err == nil {
		res.Err, res.Outputs, res.Responses = b.fault, nil, nil
	}
}

// endStage calls Stage.End. Its panic fails the batch.
func (b *batch) endStage(entries []*queue.Entry, res *infer.Result) {
	defer func() {
		if v := recover(); v != nil {
			res.Err, res.Outputs, res.Responses = b.bugLocked(v), nil, nil
		}
	}()
	b.stage.End(&b.Batch, entries, res)
}

// part is a result that others follow.
func (b *batch) part(res *infer.Result, t times, now int64) {
	if res.Free {
		b.free(now)
	}
	if b.stage != nil {
		var n news
		b.show(res, &n)
		b.d.carry(&n)
	}
	b.hand(res, t)
	if res.InputsRead {
		b.inputsRead()
	}
	b.d.advance()
}

func (b *batch) show(res *infer.Result, n *news) {
	b.d.mu.Lock()
	defer b.d.unlock(n)
	b.stageLocked(b.entriesLocked(), res)
}

// repeats says that a request of the batch asks to be executed again.
func repeats(res *infer.Result) bool {
	for i := range res.Responses {
		if res.Responses[i].Repeat {
			return true
		}
	}
	return false
}

// asksAgain says that a request of the batch does.
func asksAgain(res *infer.Result, index int) bool {
	return slices.ContainsFunc(res.Responses, func(r infer.RequestResult) bool { return r.Repeat && r.Index == index })
}

// repeatLocked queues the requests again that ask for it, and notes which those are, and why
// others may not go on.
func (b *batch) repeatLocked(e *ending) {
	res, again := e.res, e.again
	for i := range res.Responses {
		r := &res.Responses[i]
		if !r.Repeat || r.Index < 0 || r.Index >= len(b.items) || again[r.Index] {
			continue
		}
		it := b.items[r.Index]
		if _, done := it.state(); done || it.left || it.null || b.read {
			continue
		}
		if !b.d.core.Repeat(&it.Entry) {
			b.haltLocked(e, it)
			continue
		}
		it.batch = nil
		b.d.waiting.add(it)
		again[r.Index] = true
	}
}

// haltLocked notes why an item may not be executed again.
func (b *batch) haltLocked(e *ending, it *item) {
	if err := b.d.core.Verdict(&it.Entry); err != nil {
		if e.halted == nil {
			e.halted = map[int]error{}
		}
		e.halted[it.index] = err
	}
}
