package drive

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// item is one request under way. Until its sink's Done its request holds one reference, who
// watches the caller's context another, and a batch that it is in one more; the last one gives
// it back to the pool.
type item struct {
	queue.Entry
	d    *Driver
	req  *infer.Request
	wake chan struct{} // one token: parts came
	refs atomic.Int32

	to      infer.Sink
	ctx     context.Context // whose end takes the item out; it is the call's, which outlives the item
	awaited bool            // its caller waits, and delivers when it is woken
	waiter  waiter          // the sink then

	// Where the inputs lie; set by prepare and place, read until the last release.
	inputs  []placed
	slot    *slot
	private []byte // a block of its own; nil: none
	rowSize int64  // bytes for each row to be copied to a slot; 0: none
	null    bool   // made by NewNull: nothing of it changes

	// Guarded by Driver.mu.
	batch        *batch // nil: in none
	index        int    // in the batch
	left         bool   // nobody waits for the batch's answer any more
	before, next *item  // order
	ordered      bool   // is in order
	waits        bool   // is in waiting
	spoilt       bool   // a core that met a panic has known it: it is not used again

	lineBefore, lineNext *item // waiting

	mu    sync.Mutex
	parts parts // handed over, not yet taken
	sent  bool  // a part was handed over
	done  bool  // the final part was
	gone  bool  // the caller left: parts are dropped

	busy    bool               // somebody calls the sink
	over    bool               // its last part has been claimed, or its caller is gone; what follows stays as it is
	watched lifetime.Watchable // has the item as its watcher
	stop    func() bool        // takes it out of any other context
}

// reset readies an item for a request. Its caller has so many references.
func (it *item) reset(req *infer.Request, refs int32) {
	it.req = req
	it.refs.Store(refs)
	it.Rows = max(req.Rows, 1)
	it.Losses = 0
	it.slot, it.private, it.rowSize = nil, nil, 0
	it.batch, it.left, it.ordered, it.waits = nil, false, false, false
	it.sent, it.done, it.gone = false, false, false
	it.busy, it.over, it.awaited = false, false, false
}

func (d *Driver) recycle(it *item) {
	if it.refs.Add(-1) > 0 || it.spoilt {
		return
	}
	select {
	case <-it.wake:
	default:
	}
	it.req, it.to, it.ctx, it.watched, it.stop = nil, nil, nil, nil, nil
	it.Group = nil
	clear(it.inputs)
	it.inputs = it.inputs[:0]
	it.waiter = waiter{}
	it.parts.drop()
	d.items.Put(it)
}

// push hands a part over, and wakes the item's caller if it waits; else deliver is to be called.
// It takes p's reference to memory, and drops the part when the caller left or was answered
// already; it says whether the part arrived.
func (it *item) push(p part, wake bool) bool {
	it.mu.Lock()
	if it.gone || it.done {
		it.mu.Unlock()
		p.mem.Release()
		return false
	}
	it.parts.add(p)
	it.sent, it.done = true, p.final
	wake = wake && it.awaited
	it.mu.Unlock()
	if wake {
		it.signal()
	}
	return true
}

func (it *item) signal() {
	select {
	case it.wake <- struct{}{}:
	default:
	}
}

// state says what was handed over.
func (it *item) state() (sent, done bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.sent, it.done
}

// leave drops what came and what will come.
func (it *item) leave() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.gone, it.over = true, true
	it.parts.drop()
}

// order is the list of items to be answered in order: only the first may be woken.
type order struct{ head, tail *item }

func (o *order) add(it *item) {
	it.ordered, it.before, it.next = true, o.tail, nil
	if o.tail != nil {
		o.tail.next = it
	} else {
		o.head = it
	}
	o.tail = it
}

func (o *order) remove(it *item) {
	if !it.ordered {
		return
	}
	if it.before != nil {
		it.before.next = it.next
	} else {
		o.head = it.next
	}
	if it.next != nil {
		it.next.before = it.before
	} else {
		o.tail = it.before
	}
	it.ordered, it.before, it.next = false, nil, nil
}

// advance wakes from the front: all that are answered, and the first that is not if
// it has a part.
func (o *order) advance() {
	for it := o.head; it != nil; it = o.head {
		sent, done := it.state()
		if done {
			o.remove(it)
		}
		if sent {
			it.signal() // a removed item may be gone after this
		}
		if !done {
			return
		}
	}
}
