package drive

import (
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// Judge is a Core that has reasons of its own to refuse a request.
type Judge interface {
	// Admit refuses an entry before it is added; nil: it may be.
	Admit(e *queue.Entry) error
	// Verdict is what the request of an entry that Expire took out hears; nil: it waited
	// too long.
	Verdict(e *queue.Entry) error
}

// Repeater is a Core whose requests may be executed several times.
type Repeater interface {
	// Repeat puts an entry whose batch ended back in front of what waits with it. false:
	// it may not go on.
	Repeat(e *queue.Entry) bool
}

func (d *Driver) admit(it *item) error {
	if j, ok := d.core.(Judge); ok {
		return j.Admit(&it.Entry)
	}
	return nil
}

// expired is the error of an entry that Expire took out.
func (d *Driver) expired(e *queue.Entry) error {
	if j, ok := d.core.(Judge); ok {
		if err := j.Verdict(e); err != nil {
			return err
		}
	}
	// Source: the text of the original's dynamic batch scheduler.
	return infer.Refusef(infer.Unavailable, infer.ReasonQueueTimeout, "Request timeout expired")
}

// stageLocked shows a result to the stage.
func (b *batch) stageLocked(res *infer.Result) {
	entries := b.d.scratch[:0]
	for _, it := range b.items {
		entries = append(entries, &it.Entry)
	}
	b.d.cfg.Stage.End(&b.Batch, entries, res)
	b.d.scratch = entries[:0]
}

// part is a result that others follow.
func (b *batch) part(res *infer.Result, t times) {
	if b.d.cfg.Stage != nil {
		b.d.mu.Lock()
		b.stageLocked(res)
		b.d.mu.Unlock()
	}
	b.hand(res, t)
	b.d.advance()
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

// repeatLocked queues the requests again that ask for it, and says which those are.
func (b *batch) repeatLocked(res *infer.Result) []bool {
	core, ok := b.d.core.(Repeater)
	if !ok || !repeats(res) {
		return nil
	}
	again := make([]bool, len(b.items))
	for i := range res.Responses {
		r := &res.Responses[i]
		if !r.Repeat || r.Index < 0 || r.Index >= len(b.items) || again[r.Index] {
			continue
		}
		it := b.items[r.Index]
		if _, done := it.state(); done || it.left || it.null || !core.Repeat(&it.Entry) {
			continue
		}
		it.batch = nil
		again[r.Index] = true
	}
	return again
}
