package python

import (
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// batch is an execution order that a process has. It is used again where the worker's batch was
// not kept.
type batch struct {
	run *run

	mu       sync.Mutex
	b        backend.Batch // guarded by mu; nil when Execute has returned
	open     backend.Open  // guarded by mu; nil: b was not kept
	requests []request     // guarded by mu, but for their number
	left     int           // guarded by mu: requests that are not closed
	resulted bool          // guarded by mu: its result has come
	early    []early       // guarded by mu: answers that came before it was kept, in their order
	blocks   []channel.Segment
	grant    channel.Segment // what came with it for its answers
	room     []byte          // of the grant, where that lies in the response arena
	outputs  []infer.Tensor  // guarded by mu: scratch
}

// early is an answer by a sender of a batch that was not kept.
type early struct {
	request *request
	flags   uint8
	answer  channel.Response
}

// begin makes x the order of b.
func (x *batch) begin(r *run, b backend.Batch) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(b.Requests())
	if cap(x.requests) < n {
		x.requests = make([]request, n)
	}
	x.run, x.b, x.open, x.resulted = r, b, nil, false
	x.requests = x.requests[:n]
	for i := range x.requests {
		x.requests[i] = request{batch: x, index: i}
	}
	if err := r.slots.take(x); err != nil {
		x.b, x.requests, x.left = nil, x.requests[:0], 0
		return err
	}
	x.left = n
	return nil
}

// answers is what a batch and one that was kept have in common.
type answers interface {
	Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error
	Fail(i int, err error) error
	RespondError(i int, err error) (open bool, fault error)
}

// to is where answers go. The caller holds mu.
func (x *batch) to() answers {
	if x.open != nil {
		return x.open
	}
	return x.b
}

// keep keeps the worker's batch and has the process know of cancelled requests. The caller
// holds mu.
func (x *batch) keep() error {
	open, err := x.b.Keep()
	if err != nil {
		return err
	}
	x.open = open
	for i := range x.requests {
		if r := &x.requests[i]; !r.failed {
			key := r.key
			open.Watch(i, func(cause error) { x.told(r, key, cause) })
		}
	}
	return nil
}

// told is what the worker says of a request of a batch that was kept.
func (x *batch) told(r *request, key uint64, cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.key != key || r.closed {
		return
	}
	switch infer.ReasonOf(cause) {
	case infer.ReasonDeadline: // which bounds the queue alone
		return
	case infer.ReasonCancelled:
	default: // the worker has failed it
		r.failed = true
	}
	x.run.channel.Cancel(key)
}

// deliver answers a request. The caller holds mu. flags are those of a PART. What the answer's
// tensors lie in may be used again when it returns.
func (x *batch) deliver(r *request, flags uint8, a *channel.Response) error {
	final, to, m := flags&partFinal != 0, x.to(), x.run.model()
	var err error
	switch {
	case r.failed:
	case flags&partAnswer == 0 && final && m.decoupled:
		err = to.Respond(r.index, nil, nil, true)
	case flags&partAnswer == 0 && final:
		err = noAnswer()
	case flags&partAnswer == 0:
	case a.Code != 0:
		err = infer.Errorf(codeOf(a.Code), "%s", a.Message)
	default:
		var params infer.Params
		if params, err = paramsOf(a.Params); err == nil {
			err = x.outputsOf(r.of(), a.Outputs)
		}
		if err == nil && final && x.open == nil && len(x.requests) == 1 {
			err = x.place()
		}
		if err == nil {
			err = to.Respond(r.index, x.outputs, params, final)
		}
	}
	if err != nil {
		if !final && a.Code != 0 {
			open, err := to.RespondError(r.index, err)
			r.failed = !open
			return err
		}
		r.failed = true
		err = to.Fail(r.index, err)
	}
	if final {
		x.close(r)
	}
	return err
}

// place copies the outputs of the request that is alone in its batch to where its client may
// want them. The caller holds mu.
func (x *batch) place() error {
	for i := range x.outputs {
		t := &x.outputs[i]
		if len(t.Data) == 0 || x.inRoom(t.Data) {
			continue
		}
		mem, err := x.b.AllocOutput(t.Name, int64(len(t.Data)))
		if err != nil {
			return err
		}
		copy(mem, t.Data)
		t.Data = mem
	}
	return nil
}

// inRoom says that data lies in the response arena already.
func (x *batch) inRoom(data []byte) bool {
	if x.room == nil {
		return false
	}
	answers, _, ok := x.run.arenas.Locate(data)
	return ok && answers
}

// fail fails a request, if it has no final answer. The caller holds mu.
func (x *batch) fail(r *request, cause error) error {
	if r.failed || r.closed {
		return nil
	}
	r.failed = true
	return x.to().Fail(r.index, cause)
}

// close ends a request's key: the process sends nothing more for it. The caller holds mu.
func (x *batch) close(r *request) {
	if r.closed {
		return
	}
	r.closed, r.failed = true, true
	x.run.slots.release(r)
	if x.left--; x.left == 0 && x.resulted {
		x.free()
	}
}

// free gives back the memory of the inputs. The caller holds mu.
func (x *batch) free() {
	for _, s := range x.blocks {
		x.run.channel.Exchange.Free(s)
	}
	x.blocks = x.blocks[:0]
}

// end drops the order: its process has ended or does not know of it. The caller holds mu.
func (x *batch) end() {
	for i := range x.requests {
		if r := &x.requests[i]; !r.closed {
			r.closed, r.failed = true, true
			x.run.slots.release(r)
		}
	}
	x.left = 0
	x.free()
	clear(x.early)
	x.early = x.early[:0]
}

// noAnswer is the failure of a request that its model has forgotten.
func noAnswer() error {
	return infer.Errorf(infer.Internal, "the model gave no answer to the request")
}
