package client

import (
	"slices"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// viewer finds the bytes of a segment of a result; an error means that the worker
// named what it must not.
type viewer interface {
	view(s wire.Segment) ([]byte, error)
}

// received is one result with what it usually needs, in one allocation. It is not
// reused: schedulers may hand its tensors on.
type received struct {
	buffer infer.Buffer // first: freeReceived finds the rest by it
	memory *peerMemory
	token  uint64
	size   int64 // bytes of tensors in memory, or in the budget's
	budget *infer.Budget

	result  infer.Result
	passed  []*infer.Buffer // under outputs that are inputs, or resident; a reference for each
	tensors [2]infer.Tensor
	shapes  [8]int64
	rest    []int64 // of shapes
}

// setResult fills r.result from a decoded descriptor for a batch.
func (r *received) setResult(w *wire.Result, b *infer.Batch, mem viewer) error {
	r.rest = r.shapes[:]
	out := &r.result
	out.More, out.Free, out.InputsRead, out.Compute = w.More, w.Free, w.InputsRead, w.Compute
	if w.Err != "" {
		out.Err = r.refusal(w.Code, w.Reason, w.Err)
		return nil
	}
	var err error
	if len(w.Responses) == 0 && len(w.Outputs) == 0 && w.More {
		return nil // it answers nobody
	}
	if len(w.Responses) == 0 {
		tensors := r.tensors[:0]
		if len(w.Outputs) > len(r.tensors) {
			tensors = make([]infer.Tensor, 0, len(w.Outputs))
		}
		var alone *infer.Request
		if len(b.Requests) == 1 {
			alone = b.Requests[0]
		}
		out.Outputs, err = r.appendTensors(tensors, w.Outputs, b, alone, mem)
		return err
	}
	out.Responses = make([]infer.RequestResult, len(w.Responses))
	for i := range w.Responses {
		if err := r.setResponse(&out.Responses[i], &w.Responses[i], b, mem); err != nil {
			return err
		}
	}
	return nil
}

func (r *received) setResponse(out *infer.RequestResult, w *wire.Response, b *infer.Batch, mem viewer) error {
	if w.Index < 0 || w.Index >= len(b.Requests) {
		return infer.Errorf(infer.Internal, "an answer to request %d of a batch of %d", w.Index, len(b.Requests))
	}
	out.Index = w.Index
	if w.Err != "" {
		err := r.refusal(w.Code, w.Reason, w.Err)
		if w.GoesOn {
			out.Response = &infer.Response{Err: err}
		} else {
			out.Err = err
		}
		return nil
	}
	tensors, err := r.appendTensors(make([]infer.Tensor, 0, len(w.Outputs)), w.Outputs, b, b.Requests[w.Index], mem)
	if err != nil {
		return err
	}
	out.Response = &infer.Response{Outputs: tensors, Final: w.Final && !w.Repeat}
	if out.Repeat = w.Repeat; w.Repeat && len(tensors) == 0 {
		out.Response = nil
		return nil
	}
	if len(w.Params) > 0 {
		out.Response.Params = append(infer.Params(nil), w.Params...)
	}
	return nil
}

// answered are the requests of a batch that parts of its result gave their final answers to.
// Such a request may be another caller's already, so nothing may be read of it any more.
type answered struct {
	batch    uint64
	requests []lastAnswer
}

// lastAnswer says what the last answer to a request was.
type lastAnswer uint8

const (
	noAnswer    lastAnswer = iota // it is still to come
	finalAnswer                   // a response
	errorAnswer                   // an error
)

// has says that request i of a batch has its last answer.
func (a *answered) has(batch uint64, i int) bool {
	return a.batch == batch && i < len(a.requests) && a.requests[i] != noAnswer
}

// check is asked of each result before it is read with its batch's requests.
func (a *answered) check(w *wire.Result, b *infer.Batch) error {
	if a.batch == b.ID && len(a.requests) > 0 {
		if len(w.Outputs) > 0 && slices.Contains(a.requests, finalAnswer) {
			return infer.Errorf(infer.Internal, "an answer to a whole batch, of which requests have their final answers")
		}
		for i := range w.Responses {
			if k := w.Responses[i].Index; k >= 0 && k < len(a.requests) && a.requests[k] == finalAnswer {
				return infer.Errorf(infer.Internal, "an answer to request %d, which had its final answer", k)
			}
		}
	}
	for i := range w.Responses {
		p := &w.Responses[i]
		last := finalAnswer
		if p.Err != "" {
			last = errorAnswer
		}
		if !w.More || p.GoesOn || last == finalAnswer && (!p.Final || p.Repeat) || p.Index < 0 || p.Index >= len(b.Requests) {
			continue
		}
		if a.batch != b.ID || len(a.requests) == 0 {
			a.batch, a.requests = b.ID, grow(a.requests, len(b.Requests))
			clear(a.requests)
		}
		a.requests[p.Index] = last
	}
	return nil
}

// appendTensors reads the outputs of a request of b, or with nil of several.
func (r *received) appendTensors(dst []infer.Tensor, outputs []wire.Output, b *infer.Batch, q *infer.Request, mem viewer) ([]infer.Tensor, error) {
	for i := range outputs {
		o := &outputs[i]
		if slot, off, ok := o.Data.Region(); ok {
			p := infer.Place{Region: slot, Offset: off, Size: o.Data.Length}
			var err error
			if p.IsResident() {
				p, err = r.addResident(b, q, o, slot, off)
			} else {
				err = checkPlace(q, o.Name, p)
			}
			if err != nil {
				return nil, err
			}
			dst = append(dst, infer.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: r.keepShape(o.Shape), Place: p})
			continue
		}
		var data []byte
		var err error
		if k, ok := o.Data.Input(); ok {
			data, err = r.pass(b, q, k, o.Data.Length)
		} else {
			data, err = mem.view(o.Data)
			r.size += int64(len(data))
		}
		if err != nil {
			return nil, err
		}
		dst = append(dst, infer.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: r.keepShape(o.Shape), Data: data})
	}
	return dst, nil
}

// checkPlace says that an output was wanted where the worker says it is.
func checkPlace(q *infer.Request, name string, p infer.Place) error {
	if q != nil {
		for i := range q.Outputs {
			if o := &q.Outputs[i]; o.Name == name && o.Place.Region == p.Region && o.Place.Offset == p.Offset && p.Size <= o.Place.Size {
				return nil
			}
		}
	}
	return infer.Errorf(infer.Internal, "an answer lies in a shared memory region, where output '%s' was not wanted", name)
}

func (r *received) keepShape(shape []int64) []int64 {
	n := len(shape)
	if n > len(r.rest) {
		return append(make([]int64, 0, n), shape...)
	}
	kept := r.rest[:n:n]
	r.rest = r.rest[n:]
	copy(kept, shape)
	return kept
}

// known keeps reasons to those there are: they become labels of metrics, which a worker
// must not make up.
func known(r infer.Reason) infer.Reason {
	switch r {
	case infer.ReasonQueueFull, infer.ReasonQueueTimeout, infer.ReasonDeadline, infer.ReasonCancelled, infer.ReasonStopping,
		infer.ReasonNotReady, infer.ReasonMemory, infer.ReasonTooLarge, infer.ReasonCallCycle, infer.ReasonCallDepth:
		return r
	}
	return ""
}

// refusal is an error of a worker. One for want of memory is noted.
func (r *received) refusal(code infer.Code, reason infer.Reason, text string) error {
	if reason == infer.ReasonMemory && r.memory != nil {
		r.memory.refused.Note()
	}
	if reason == infer.ReasonWorkerLost {
		return &infer.Error{Code: code, Reason: reason, Err: lostInstance(text)}
	}
	return infer.Refusef(code, known(reason), "%s", text)
}

// lostInstance is the text of a worker one of whose instances has lost what it had, as if the
// worker had ended.
type lostInstance string

// Error is the text.
func (e lostInstance) Error() string { return string(e) }

// Unwrap gives the cause.
func (lostInstance) Unwrap() error { return infer.ErrWorkerLost }

// hasData says that tensors of the result lie in the worker's memory.
func (r *received) hasData() bool {
	if len(r.result.Outputs) > 0 {
		return true
	}
	for i := range r.result.Responses {
		if p := r.result.Responses[i].Response; p != nil && len(p.Outputs) > 0 {
			return true
		}
	}
	return false
}

// pass is the data of an output that is input k of its request: what the request has, wherever
// the worker read it. A batch in flight holds its requests' memory.
func (r *received) pass(b *infer.Batch, q *infer.Request, k, n int64) ([]byte, error) {
	if q != nil && r.memory != nil && k < int64(len(b.Inputs)) {
		for i := range q.Inputs {
			if t := &q.Inputs[i]; t.Name == b.Inputs[k].Name && int64(len(t.Data)) == n {
				q.Memory.Retain()
				r.passed = append(r.passed, q.Memory)
				return t.Data, nil
			}
		}
	}
	return nil, infer.Errorf(infer.Internal, "an answer is said to be %d bytes of input %d, which its request has not", n, k)
}

// releasePassed lets go of outputs that are no bytes of the worker's memory.
func (r *received) releasePassed() {
	for i, m := range r.passed {
		m.Release()
		r.passed[i] = nil
	}
}

// freeReceived gives a result's memory back to its worker. The buffer is the first
// field of received.
func freeReceived(b *infer.Buffer) {
	r := (*received)(unsafe.Pointer(b))
	r.releasePassed()
	r.memory.held.Add(-r.size)
	r.memory.release(r.token)
}
