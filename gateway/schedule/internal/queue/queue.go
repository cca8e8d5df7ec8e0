// Package queue is the pure part that the default scheduler and the dynamic batcher
// share: the waiting lines with their bounds and timeouts, the requests that lost
// their worker, and which instances are free. It has no goroutine, clock, lock or I/O:
// time comes in as an argument, decisions go out as values. Its caller serializes.
//
// What differs between the two schedulers is one question, asked of a Cutter: how many
// of the waiting requests, from the front, are the next batch?
package queue

import (
	"container/heap"
	"math"
)

// Entry is one request in the line. Its owner keeps it unchanged while it waits.
type Entry struct {
	Rows     int    // of the batch dimension; at least 1
	Level    uint64 // of its priority: 1 is served first; 0: the model has no levels
	Key      []byte // shapes and set of inputs; one batch has equal keys
	At       int64  // when it was queued
	Deadline int64  // when it stops waiting; 0: never
	Losses   int    // workers that ended under it
	Owner    any    // for the caller
	Group    any    // for the core: the sequence that it belongs to; before Add, what DoOf was given
	Caller   string // whose it is; "": nobody's in particular
	Weight   int    // of the caller, in shares of a full line; 0: 1

	where      place
	heap       int // index in Core.deadlines; -1: has none
	prev, next *Entry

	holder       *holder
	older, newer *Entry // of the holder
}

// Waiting says that the entry stands in the line or waits to be tried again.
func (e *Entry) Waiting() bool { return e.where != nowhere }

// Next is the entry behind e: of the same level, or the first of the next one.
func (e *Entry) Next() *Entry { return e.next }

// Cutter decides what the next batch is.
type Cutter interface {
	// Cut is asked when an instance is free. It returns how many entries, from head on,
	// leave now; or 0 and the time at which they leave at the latest. now is
	// math.MaxInt64 when no entry will follow, so that waiting is pointless.
	Cut(head *Entry, now int64) (n int, wake int64)
}

// Core is the state machine.
type Core struct {
	cut       Cutter
	flush     bool
	line      lines
	again     list // lost their worker; before all others, each in a batch of its own
	retrying  *Entry
	deadlines deadlineHeap
	hold      int64 // when the Cutter wants to be asked again; 0: need not
	Instances
}

// New makes a core with a line for each level, and all instances up and free.
func New(cut Cutter, levels Lines, instances int) *Core {
	return &Core{cut: cut, line: lines{cfg: levels}, Instances: NewInstances(instances)}
}

// Full says that adding e would exceed the limit of its line.
func (c *Core) Full(e *Entry) bool { return c.line.full(e) }

// Add puts e at the end of its line. The caller asked Full before.
func (c *Core) Add(e *Entry) {
	e.heap = -1
	c.line.add(e)
	c.watch(e)
}

func (c *Core) watch(e *Entry) {
	if e.Deadline != 0 {
		heap.Push(&c.deadlines, e)
	}
}

// Remove takes a waiting entry out.
func (c *Core) Remove(e *Entry) {
	switch e.where {
	case nowhere:
		return
	case inAgain:
		c.again.remove(e)
	default:
		c.line.remove(e)
	}
	if e.heap >= 0 {
		heap.Remove(&c.deadlines, e.heap)
	}
}

// Expire takes out one entry whose deadline has passed and whose line rejects such
// entries; nil when there is none. Where the line delays them it moves them.
func (c *Core) Expire(now int64) *Entry {
	for len(c.deadlines) > 0 && c.deadlines[0].Deadline <= now {
		e := c.deadlines[0]
		if !c.line.delays(e) {
			c.Remove(e)
			return e
		}
		heap.Pop(&c.deadlines)
		if e.where != inAgain {
			c.line.delay(e)
		}
	}
	return nil
}

// Any takes out any waiting entry; nil when there is none.
func (c *Core) Any() *Entry {
	e := c.again.head
	if e == nil {
		e = c.line.order.head
	}
	if e != nil {
		c.Remove(e)
	}
	return e
}

// Next takes the next batch out of the line, appended to batch, and the instance that
// gets it; -1 when nothing leaves now. It is asked until then after every event.
func (c *Core) Next(now int64, batch []*Entry) ([]*Entry, int) {
	c.hold = 0
	i := c.Free()
	if i < 0 {
		return batch, -1
	}
	if c.again.n > 0 && c.retrying == nil {
		e := c.again.head
		c.Remove(e)
		c.retrying = e
		c.Take(i)
		return append(batch, e), i
	}
	if c.line.order.n == 0 {
		return batch, -1
	}
	if c.flush {
		now = math.MaxInt64
	}
	c.line.turn()
	n, wake := c.cut.Cut(c.line.order.head, now)
	if n == 0 {
		c.hold = wake
		return batch, -1
	}
	for range n {
		e := c.line.order.head
		c.Remove(e)
		batch = append(batch, e)
	}
	c.line.left()
	c.Take(i)
	return batch, i
}

// Idle says that a request would leave at once if the Cutter lets it.
func (c *Core) Idle() bool { return c.line.order.n == 0 && c.Free() >= 0 }

// Wake is when Next or Expire must be asked again though nothing else happens; 0: never.
func (c *Core) Wake() int64 {
	at := c.hold
	if len(c.deadlines) > 0 && (at == 0 || c.deadlines[0].Deadline < at) {
		at = c.deadlines[0].Deadline
	}
	return at
}

// Done frees the instance; batch is what it had.
func (c *Core) Done(i int, batch []*Entry) {
	c.Instances.Done(i)
	c.settle(batch)
}

// Lost frees an instance whose worker ended and takes it out of service, unless it
// has come up again since the given life.
func (c *Core) Lost(i int, life uint64, batch []*Entry) {
	c.Instances.Lost(i, life)
	c.settle(batch)
}

func (c *Core) settle(batch []*Entry) {
	if len(batch) == 1 && c.retrying == batch[0] {
		c.retrying = nil
	}
}

// Again puts an entry whose worker ended before all others, to be tried alone: then a
// request that ends workers is known by its second one, and none suffers beside it.
// False says that two workers ended under it.
func (c *Core) Again(e *Entry) bool {
	e.Losses++
	if e.Losses > 1 {
		return false
	}
	e.heap = -1
	c.again.insert(e, c.again.tail, inAgain)
	c.watch(e)
	return true
}

// Flush says that nothing will be added any more: no batch waits to be filled.
func (c *Core) Flush() { c.flush = true }

// Pending counts waiting entries.
func (c *Core) Pending() int { return c.line.order.n + c.again.n }

type deadlineHeap []*Entry

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].Deadline < h[j].Deadline }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

func (h *deadlineHeap) Push(x any) {
	e := x.(*Entry)
	e.heap = len(*h)
	*h = append(*h, e)
}

func (h *deadlineHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.heap = -1
	return e
}

// Admit is drive.Core's: what there is room for may come.
func (c *Core) Admit(*Entry) error { return nil }

// Verdict is drive.Core's: what expires has waited too long.
func (c *Core) Verdict(*Entry) error { return nil }

// Repeat is drive.Core's: nothing is executed again.
func (c *Core) Repeat(*Entry) bool { return false }
