package client

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// maxOpen bounds what a worker may say of how many requests an instance has open.
const maxOpen = 1 << 16

// open is a batch that was freed: its instance takes others, and its last result is still to
// come.
type open struct {
	batch    *infer.Batch
	block    []byte   // where its descriptor stands in the arena; nil: nowhere
	flags    []uint32 // its cancel flags, in block
	copies   [][]byte // blocks of the arena that inputs were copied to
	answered answered
}

// opens are the open batches of one instance, the oldest first. The executor's mu guards them.
type opens struct {
	most     int // requests that they may have together
	requests int // that they have
	all      []*open
}

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
func (e *executor) free(b *infer.Batch) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(b.Requests)
	switch {
	case e.current != b:
		return infer.Errorf(infer.Internal, "batch %d was freed twice", b.ID)
	case e.opens.requests+n > e.opens.most:
		return infer.Errorf(infer.Internal, "a batch of %d requests was freed while %d are open: the instance may have %d", n,
			e.opens.requests, e.opens.most)
	}
	e.opens.all = append(e.opens.all, &open{batch: b, block: e.block, flags: e.flags, copies: e.copies, answered: e.answered})
	e.opens.requests += n
	e.current, e.block, e.flags, e.copies, e.answered = nil, nil, nil, nil, answered{}
	return nil
}

// closeLocked ends an open batch; false: there is none.
func (e *executor) closeLocked(b *infer.Batch) bool {
	i := slices.IndexFunc(e.opens.all, func(o *open) bool { return o.batch == b })
	if i < 0 {
		return false
	}
	o := e.opens.all[i]
	e.opens.all = slices.Delete(e.opens.all, i, i+1)
	e.opens.requests -= len(b.Requests)
	for _, c := range o.copies {
		e.arena.Free(c)
	}
	if o.block != nil {
		e.arena.Free(o.block)
	}
	e.overLocked()
	return true
}
