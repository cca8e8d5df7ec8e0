package drive

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// item is one request under way. The caller of Do, or of Start until Done, holds one
// reference, a batch that it is in another; the last one gives it back to the pool.
type item struct {
	queue.Entry
	d    *Driver
	req  *infer.Request
	wake chan struct{} // one token: parts came
	refs atomic.Int32

	// Of Start; to is nil where a goroutine waits.
	to  infer.Sink
	ctx context.Context // whose end takes the item out; it is the call's, which outlives the item

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
	parts []part // handed over, not yet taken
	sent  bool   // a part was handed over
	done  bool   // the final part was
	gone  bool   // the caller left: parts are dropped

	// Of Start.
	busy    bool        // somebody calls the sink
	over    bool        // its Done is called
	quit    bool        // the caller left while it was busy
	watched watchable   // has the item as its watcher
	stop    func() bool // takes it out of any other context
}

// part is one answer on its way to its caller.
type part struct {
	result *infer.Result   // of the whole batch, to be cut
	resp   *infer.Response // or of this request alone
	mem    *infer.Buffer   // one reference
	err    error
	final  bool
	first  int // row of this request in result
	index  int // of this request in batch
	batch  *batch
	times  times
}

// times are those of a batch, for every request in it.
type times struct {
	start, inputEnd, outputStart, end int64
	rows                              int
}

func (it *item) reset(req *infer.Request) {
	it.req = req
	it.refs.Store(1)
	it.Rows = max(req.Rows, 1)
	it.Losses = 0
	it.slot, it.private, it.rowSize = nil, nil, 0
	it.batch, it.left, it.ordered, it.waits = nil, false, false, false
	it.sent, it.done, it.gone = false, false, false
	it.busy, it.over, it.quit = false, false, false
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
	clear(it.parts[:cap(it.parts)])
	it.parts = it.parts[:0]
	d.items.Put(it)
}

// push hands a part over; a started item has it by deliver. It takes p's reference to memory, and drops the part when
// the caller left or was answered already; it says whether the part arrived.
func (it *item) push(p part, wake bool) bool {
	it.mu.Lock()
	if it.gone || it.done {
		it.mu.Unlock()
		p.mem.Release()
		return false
	}
	it.parts = append(it.parts, p)
	it.sent, it.done = true, p.final
	wake = wake && it.to == nil
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

// take moves the parts that came to into.
func (it *item) take(into []part) []part {
	it.mu.Lock()
	defer it.mu.Unlock()
	into = append(into, it.parts...)
	clear(it.parts)
	it.parts = it.parts[:0]
	return into
}

// leave drops what came and what will come.
func (it *item) leave() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.gone = true
	for i := range it.parts {
		it.parts[i].mem.Release()
	}
	clear(it.parts)
	it.parts = it.parts[:0]
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
