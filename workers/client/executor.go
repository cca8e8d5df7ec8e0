package client

import (
	"errors"
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// link carries the batches of one connected worker. Its methods are called with the
// executor's mu held, and don't block.
type link interface {
	// post sends e.batch, which is e.current. An error means that it was not sent.
	post(e *executor) error
	// cancel says that nobody waits for request i of a batch any more, which is in flight
	// and whose cancel flags those are.
	cancel(batch uint64, flags []uint32, i int)
	// forget says that no result of a batch is waited for any more.
	forget(batch uint64)
}

// executor is one instance as a scheduler sees it: infer.Executor. It outlives the
// worker process that has its instance.
type executor struct {
	arena allocator // where batches are laid out for local workers
	index uint32    // in LoadRequest.instances
	box   int       // mailbox on the worker's lane

	instance, worker string // their names
	// renewed says that the instance has lost what it had, and takes batches again.
	renewed func()

	failures *sync.WaitGroup // of the goroutines that deliver what could not be sent

	mu       sync.Mutex
	link     link          // guarded by mu: nil while the instance is down
	stopped  bool          // guarded by mu: unloaded, nothing will come up again
	handle   uint64        // guarded by mu: of the version in the worker that link is
	current  *infer.Batch  // guarded by mu: in flight, and the instance takes no other
	onDevice bool          // guarded by mu: outputs may stay in its device's memory
	context  bool          // guarded by mu: requests have their context
	opens    opens         // guarded by mu: in flight, and the instance is free of them
	batch    wire.Batch    // guarded by mu: its descriptor
	copies   [][]byte      // guarded by mu: blocks of the arena that inputs were copied to
	block    []byte        // guarded by mu: where descriptors stand in the arena, kept if it is no large one
	flags    []uint32      // guarded by mu: the cancel flags of current, in block
	over     chan struct{} // guarded by mu: closed when nothing is in flight, where somebody waits
	desk     *desk         // guarded by mu: for calls of the model in the worker that link is; nil: it makes none

	// The goroutine's that reads results.
	result   wire.Result
	raw      []byte
	answered answered // of current
}

var _ infer.Executor = (*executor)(nil)

// Place fits infer.Executor.
func (e *executor) Place() (instance, worker string) { return e.instance, e.worker }

// allocator is what an executor asks of the request arena.
type allocator interface {
	Alloc(n int64) ([]byte, error)
	Free(b []byte)
	Offset(b []byte) (int64, bool)
}

// Execute fits infer.Executor.
func (e *executor) Execute(b *infer.Batch) {
	e.mu.Lock()
	err := e.startLocked(b)
	e.mu.Unlock()
	if err != nil {
		// Deliver must not run while Execute is on the stack.
		e.failures.Go(func() { b.Deliver(&infer.Result{Err: err}) })
	}
}

func (e *executor) startLocked(b *infer.Batch) error {
	switch {
	case e.stopped:
		return errGone()
	case e.link == nil:
		return errLost()
	case e.current != nil:
		return infer.Errorf(infer.Internal, "batch %d was given to an instance that has batch %d", b.ID, e.current.ID)
	}
	e.current = b
	e.describeLocked(b)
	if err := e.link.post(e); err != nil {
		e.endLocked()
		return err
	}
	return nil
}

// Cancel fits infer.Executor.
func (e *executor) Cancel(b *infer.Batch, i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.link == nil || i < 0 || i >= len(b.Requests) {
		return
	}
	if e.current == b {
		e.link.cancel(b.ID, e.flags, i)
	} else if o := e.opens.find(b.ID); o != nil && o.batch == b {
		e.link.cancel(b.ID, o.flags, i)
	} else {
		return
	}
	e.desk.endRequest(b.ID, uint32(i))
}

// find is the batch in flight that has that ID, which of its requests were answered, and its
// record if it was freed; nil: there is none.
func (e *executor) find(id uint64) (*infer.Batch, *answered, *open) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != nil && e.current.ID == id {
		return e.current, &e.answered, nil
	}
	if o := e.opens.find(id); o != nil {
		return o.batch, &o.answered, o
	}
	return nil, nil, nil
}

// part delivers a result that others of its batch follow; o is nil where the batch was not
// freed before. woke is the batch's. An error says what the worker did wrong.
func (e *executor) part(b *infer.Batch, o *open, r *infer.Result) (woke bool, err error) {
	if r.Free {
		if o, err = e.free(b); err != nil {
			r.Memory.Release()
			return b.Woke, err
		}
	}
	if r.InputsRead {
		if err = e.inputsRead(b, o); err != nil {
			r.Memory.Release()
			return b.Woke, err
		}
	}
	if o != nil {
		return o.deliver(b, r), nil
	}
	b.Deliver(r)
	return b.Woke, nil
}

// finish makes the instance free, unless it was before, and delivers the final result. woke
// is the batch's.
func (e *executor) finish(b *infer.Batch, r *infer.Result) (woke bool) {
	var o *open
	e.mu.Lock()
	mine := e.current == b
	if mine {
		e.endLocked()
	} else {
		o = e.closeLocked(b.ID)
	}
	desk := e.desk
	e.mu.Unlock()
	if r.Err != nil && errors.Is(r.Err, infer.ErrWorkerLost) { // the worker lives
		defer e.failures.Go(e.renewed)
	}
	switch {
	case o != nil:
		desk.endBatch(b.ID)
		return o.deliver(b, r)
	case !mine: // it was failed meanwhile
		r.Memory.Release()
		return b.Woke
	}
	desk.endBatch(b.ID)
	b.Deliver(r)
	return b.Woke
}

func (e *executor) endLocked() {
	e.current = nil
	e.overLocked()
	e.flags = nil
	for i, c := range e.copies {
		e.arena.Free(c)
		e.copies[i] = nil
	}
	e.copies = e.copies[:0]
	if len(e.block) > keptBlock {
		e.arena.Free(e.block)
		e.block, e.batch = nil, wire.Batch{}
	}
}

// overLocked tells who waits that nothing is in flight any more.
func (e *executor) overLocked() {
	if e.over != nil && !e.busyLocked() {
		close(e.over)
		e.over = nil
	}
}

// attach puts the instance into service on a worker that loaded it, and said m of it.
func (e *executor) attach(l link, d *desk, handle uint64, m *workerpb.LoadResponse, onDevice bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.link, e.desk, e.handle, e.opens.most, e.onDevice = l, d, handle, int(m.OpenRequests), onDevice
	e.context = m.RequestContext
}

// detach takes it out of service; batches in flight stay until they are failed.
func (e *executor) detach() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.link = nil
}

// ended is closed when the batches in flight have ended; nil: there is none.
func (e *executor) ended() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busyLocked() && e.over == nil {
		e.over = make(chan struct{})
	}
	return e.over
}

// busyLocked says that somebody may wait for a batch's answers.
func (e *executor) busyLocked() bool {
	return e.current != nil || slices.ContainsFunc(e.opens.all, func(o *open) bool { return !o.silent })
}

// failAll ends what is in flight, the oldest batch first. No goroutine reads results of this
// executor any more.
func (e *executor) failAll(err error) {
	e.mu.Lock()
	opens := make([]*open, 0, len(e.opens.all))
	for len(e.opens.all) > 0 {
		opens = append(opens, e.closeLocked(e.opens.all[0].batch.ID))
	}
	current := e.current
	e.endLocked()
	desk := e.desk
	e.mu.Unlock()
	for _, o := range opens {
		desk.endBatch(o.batch.ID)
		o.deliver(o.batch, &infer.Result{Err: err})
	}
	if current != nil {
		desk.endBatch(current.ID)
		current.Deliver(&infer.Result{Err: err})
	}
}

// stop ends the executor after its instance was unloaded, and gives back its memory.
func (e *executor) stop() {
	e.mu.Lock()
	if e.link != nil {
		for _, o := range e.opens.all { // which are silent
			e.link.forget(o.batch.ID)
		}
	}
	e.link, e.stopped = nil, true
	block := e.block
	e.block = nil
	e.mu.Unlock()
	e.failAll(errGone())
	if block != nil {
		e.arena.Free(block)
	}
}

// describeLocked fills the descriptor but for the segments of the inputs.
func (e *executor) describeLocked(b *infer.Batch) {
	d, onDevice := &e.batch, e.onDevice
	d.ID, d.Rows = b.ID, b.Rows
	d.Requests = grow(d.Requests, len(b.Requests))
	for i, q := range b.Requests {
		r := &d.Requests[i]
		outputs, places := r.Outputs[:0], r.Places[:0]
		for k := range q.Outputs {
			outputs = append(outputs, q.Outputs[k].Name)
			if p := q.Outputs[k].Place; !p.IsZero() {
				places = append(pad(places, k), segmentOf(p))
			} else if onDevice && q.Outputs[k].Resident {
				places = append(pad(places, k), wire.Resident)
			}
		}
		if len(outputs) > 0 {
			outputs = append(outputs, b.Also...)
		}
		if len(places) > 0 {
			places = pad(places, len(outputs))
		}
		*r = wire.Request{ID: q.ID, Rows: q.Rows, Params: q.Params, Outputs: outputs, Places: places, Correlation: q.Correlation,
			Start: q.SequenceStart, End: q.SequenceEnd, Cancel: uint32(i), Timeout: timeLeft(q)}
		if e.context {
			r.Params = withContext(q)
		}
	}
	d.Inputs = grow(d.Inputs, len(b.Inputs))
	for i := range b.Inputs {
		in, out := &b.Inputs[i], &d.Inputs[i]
		*out = wire.Input{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Layout: in.Layout, Extents: in.Extents,
			Segments: out.Segments[:0]}
	}
}

// segmentOf names a place.
func segmentOf(p infer.Place) wire.Segment { return wire.InRegion(p.Region, p.Offset, p.Size) }

// pad appends zero segments up to n.
func pad(s []wire.Segment, n int) []wire.Segment {
	for len(s) < n {
		s = append(s, wire.Segment{})
	}
	return s
}

func grow[T any](s []T, n int) []T {
	if n <= cap(s) {
		return s[:n]
	}
	return append(s[:cap(s)], make([]T, n-cap(s))...)
}

// timeLeft is what is left of a request's timeout, at least a nanosecond; 0: it has none.
func timeLeft(q *infer.Request) int64 {
	if q.Timeout <= 0 {
		return 0
	}
	left := int64(q.Timeout)
	if q.Times.RequestStart > 0 {
		left -= infer.Now() - q.Times.RequestStart
	}
	return max(left, 1)
}
