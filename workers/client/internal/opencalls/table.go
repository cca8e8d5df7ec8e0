// Package opencalls knows the calls of a worker's models that have no final answer yet: which
// may begin, how many answers may be under way, and which end with what they serve.
//
// A Table is a plain state machine without goroutine, clock, lock or I/O. The calls of one
// connection have one, and its owner does what it says.
package opencalls

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// Limits bound the calls of one connection.
type Limits struct {
	Open        int // calls without final answer
	OpenOfModel int // those of one loaded model version
	Window      int // answers of one call which are not final and which the worker has not taken
}

// Request is a request that a call serves. Batch 0: none.
type Request struct {
	Batch uint64
	Index uint32
}

// Table is the calls of one connection. Make it with New.
type Table struct {
	limits  Limits
	open    map[uint64]*call
	serving map[uint64][]*call // by batch
	ended   map[Request]bool   // requests of batches in flight whose calls have ended
	models  map[uint64]int     // by handle: calls that are open
}

type call struct {
	id, handle uint64
	serves     Request
	untaken    int // answers
}

// New makes an empty table.
func New(l Limits) *Table {
	return &Table{limits: l, open: map[uint64]*call{}, serving: map[uint64][]*call{}, ended: map[Request]bool{},
		models: map[uint64]int{}}
}

// Has says that a call of that ID is open.
func (t *Table) Has(id uint64) bool { return t.open[id] != nil }

// Len is how many calls are open.
func (t *Table) Len() int { return len(t.open) }

// Idle says that EndRequest has nothing to end and EndBatch nothing to forget.
func (t *Table) Idle() bool { return len(t.serving) == 0 && len(t.ended) == 0 }

// Begin opens a call of a model for a request that is in flight. An error is its answer, and
// then it is not open. ID must not be open (Has).
func (t *Table) Begin(id, handle uint64, serves Request) error {
	switch {
	case t.ended[serves]:
		return Ended()
	case len(t.open) >= t.limits.Open:
		return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull,
			"the models of a worker may have %d calls open at a time", t.limits.Open)
	case t.models[handle] >= t.limits.OpenOfModel:
		return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "a model may have %d calls open at a time",
			t.limits.OpenOfModel)
	}
	c := &call{id: id, handle: handle, serves: serves}
	t.open[id] = c
	t.models[handle]++
	if serves.Batch != 0 {
		t.serving[serves.Batch] = append(t.serving[serves.Batch], c)
	}
	return nil
}

// Ended is the answer to a call whose request is answered or cancelled.
func Ended() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the request that the call serves has ended")
}

// Part counts an answer that is not final. False: the worker has to take one before.
func (t *Table) Part(id uint64) bool {
	c := t.open[id]
	if c == nil || c.untaken >= t.limits.Window {
		return false
	}
	c.untaken++
	return true
}

// Taken says that the worker has taken an answer that was not final. False: the call is not
// open any more, or it has taken all of them already.
func (t *Table) Taken(id uint64) bool {
	c := t.open[id]
	if c == nil || c.untaken == 0 {
		return false
	}
	c.untaken--
	return true
}

// Final closes a call, which gets its final answer now.
func (t *Table) Final(id uint64) {
	c := t.open[id]
	if c == nil {
		return
	}
	delete(t.open, id)
	if t.models[c.handle]--; t.models[c.handle] == 0 {
		delete(t.models, c.handle)
	}
	if c.serves.Batch == 0 {
		return
	}
	rest := slices.DeleteFunc(t.serving[c.serves.Batch], func(o *call) bool { return o == c })
	if t.serving[c.serves.Batch] = rest; len(rest) == 0 {
		delete(t.serving, c.serves.Batch)
	}
}

// EndRequest says that a request of a batch in flight is cancelled or has its final answer: it
// gets no further call. The result are its calls, which are to be cancelled.
func (t *Table) EndRequest(r Request) (cancel []uint64) {
	t.ended[r] = true
	for _, c := range t.serving[r.Batch] {
		if c.serves == r {
			cancel = append(cancel, c.id)
		}
	}
	return cancel
}

// EndBatch says that a batch has ended. The result are its requests' calls, which are to be
// cancelled.
func (t *Table) EndBatch(batch uint64) (cancel []uint64) {
	for r := range t.ended {
		if r.Batch == batch {
			delete(t.ended, r)
		}
	}
	for _, c := range t.serving[batch] {
		cancel = append(cancel, c.id)
	}
	return cancel
}

// EndModel is EndBatch for all calls of a model that is unloaded.
func (t *Table) EndModel(handle uint64) (cancel []uint64) {
	for _, c := range t.open {
		if c.handle == handle {
			cancel = append(cancel, c.id)
		}
	}
	slices.Sort(cancel)
	return cancel
}
