package drive

import (
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// NewNull makes an entry that nobody waits for: it fills an empty place in a batch whose
// places have a meaning (the slots of the direct sequence batcher). It may be in any
// number of batches at once, its answers are dropped, and it is never tried again.
func NewNull(req *infer.Request) *queue.Entry {
	it := &item{req: req, wake: make(chan struct{}, 1), null: true, left: true, gone: true, done: true}
	it.refs.Store(1)
	it.Rows = 1
	it.Owner = it
	return &it.Entry
}

// RequestOf is the request of an entry that a Driver queued or NewNull made.
func RequestOf(e *queue.Entry) *infer.Request { return e.Owner.(*item).req }
