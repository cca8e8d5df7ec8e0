package client

import (
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// maxOpen bounds what a worker may say of how many requests an instance has open.
const maxOpen = 1 << 16

// open is a batch that was freed: its instance takes others, and its last result is still to
// come. But for read, turn and ended, the executor's mu guards it.
type open struct {
	batch    *infer.Batch
	block    []byte   // where its descriptor stands in the arena; nil: nowhere
	flags    []uint32 // its cancel flags, in block
	copies   [][]byte // blocks of the arena that inputs were copied to
	answered answered
	silences []silence // by request; nil: nobody has looked at it yet
	silent   bool      // its requests have their answers or were failed, and it has not ended
	read     bool      // its inputs are read no more; the goroutine's that reads results

	// turn is held during Deliver: results come of who reads them and of failSilent. It is
	// taken before the executor's mu.
	turn  sync.Mutex
	ended bool // guarded by turn: the scheduler has the batch's end
}

// opens are the open batches of one instance, the oldest first. The executor's mu guards them.
type opens struct {
	most     int // requests that they may have together
	requests int // that they have
	all      []*open
}

// find is the open batch of that ID; nil: there is none.
func (o *opens) find(id uint64) *open {
	for _, b := range o.all {
		if b.batch.ID == id {
			return b
		}
	}
	return nil
}

// free makes the instance free while the batch stays open. An error says what the worker did
// wrong.
func (e *executor) free(b *infer.Batch) (*open, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(b.Requests)
	switch {
	case e.current != b:
		return nil, infer.Errorf(infer.Internal, "batch %d was freed twice", b.ID)
	case e.opens.requests+n > e.opens.most:
		return nil, infer.Errorf(infer.Internal,
			"a batch of %d requests was freed while %d are open: the instance may have %d", n,
			e.opens.requests, e.opens.most)
	}
	o := &open{batch: b, block: e.block, flags: e.flags, copies: e.copies, answered: e.answered}
	e.opens.all = append(e.opens.all, o)
	e.opens.requests += n
	e.current, e.block, e.flags, e.copies, e.answered = nil, nil, nil, nil, answered{}
	return o, nil
}

// deliver hands on a result, unless the scheduler has the batch's end. woke is the batch's.
func (o *open) deliver(b *infer.Batch, r *infer.Result) (woke bool) {
	o.turn.Lock()
	defer o.turn.Unlock()
	if o.ended {
		r.Memory.Release()
		return false
	}
	o.ended = !r.More
	b.Deliver(r)
	return b.Woke
}

// closeLocked ends an open batch; nil: there is none.
func (e *executor) closeLocked(id uint64) *open {
	i := slices.IndexFunc(e.opens.all, func(o *open) bool { return o.batch.ID == id })
	if i < 0 {
		return nil
	}
	o := e.opens.all[i]
	e.opens.all = slices.Delete(e.opens.all, i, i+1)
	e.opens.requests -= len(o.batch.Requests)
	for _, c := range o.copies {
		e.arena.Free(c)
	}
	if o.block != nil {
		e.arena.Free(o.block)
	}
	e.overLocked()
	return o
}
