//go:build cgo

package tritonhost

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// keep has the batch's events come to the pump from now on, and tells the backend of cancelled requests.
func (in *instance) keep(tag uintptr, x *running, open backend.Open) {
	in.start(tag, x)
	for i := range x.requests {
		if !x.done[i] {
			in.follow(tag, open, i)
		}
	}
	C.th_keep(x.c)
}

// start makes the batch one of those that the pump looks after.
func (in *instance) start(tag uintptr, x *running) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.running[tag] = x
	if !in.pumps {
		in.pumps = true
		in.pumping.Go(in.pump)
	}
}

// follow hands the end of a request on to the backend, if the backend still has it then.
func (in *instance) follow(tag uintptr, open backend.Open, i int) {
	open.Watch(i, func(cause error) {
		if infer.ReasonOf(cause) == infer.ReasonDeadline {
			return // it bounds the queue alone
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		if x := in.running[tag]; x != nil {
			C.th_cancel(x.c, C.uint32_t(i))
		}
	})
}

// pump takes what the backend does with batches that were kept, until the instance is closed.
func (in *instance) pump() {
	for {
		e := C.th_instance_wait(in.c)
		if e == nil {
			return
		}
		tag := uintptr(e.tag)
		in.mu.Lock()
		x := in.running[tag]
		in.mu.Unlock()
		if x == nil { // its execution failed
			C.th_events_free(e)
			continue
		}
		if x.left == 1 && bool(e.final) { // the batch ends with this answer
			in.mu.Lock()
			delete(in.running, tag)
			in.mu.Unlock()
			in.settle(x, e)
			C.th_events_free(e)
			C.th_batch_free(x.c)
			continue
		}
		in.settle(x, e)
		C.th_events_free(e)
	}
}

// forget ends a batch whose execution failed, where it has not ended: its requests are the worker's.
func (in *instance) forget(tag uintptr, x *running) {
	in.mu.Lock()
	_, kept := in.running[tag]
	delete(in.running, tag)
	in.mu.Unlock()
	if kept || x.batch != nil {
		C.th_batch_free(x.c)
	}
}

// abandon leaves a batch that can't be kept to the pump, which drops what the backend answers.
func (in *instance) abandon(tag uintptr, x *running) {
	for i := range x.requests {
		x.done[i] = true
		C.th_cancel(x.c, C.uint32_t(i))
	}
	in.start(tag, x)
	C.th_keep(x.c)
}

// settle answers a request as an event says. The caller alone deals with x.
func (in *instance) settle(x *running, e *C.th_event) {
	i := int(e.request)
	if bool(e.final) && !x.ended[i] {
		x.ended[i] = true
		x.left--
	}
	if x.done[i] {
		return
	}
	if e.error != nil && !bool(e.final) && in.model.decoupled { // others may follow
		open, _ := x.to.RespondError(i, errorIn(e)) // its fault is the worker's own
		x.done[i] = !open
		return
	}
	err := in.answer(x, i, e)
	if err != nil || bool(e.final) {
		x.done[i] = true
	}
	if err != nil {
		_ = x.to.Fail(i, err) // its error is the worker's own, or that the request has ended
	}
}

// answer answers request i. Its error is the request's.
func (in *instance) answer(x *running, i int, e *C.th_event) error {
	final := bool(e.final)
	switch {
	case bool(e.reschedule) && x.batch == nil:
		return infer.Errorf(infer.Internal, "model '%s': a request was rescheduled after its execution", in.model.spec.Name)
	case bool(e.reschedule):
		states, err := in.states(x, i, e)
		if err != nil {
			return err
		}
		return x.batch.Repeat(i, states)
	case e.error != nil:
		return errorIn(e)
	case !bool(e.answer) && !in.model.decoupled:
		return infer.Errorf(infer.Internal, "model '%s': the backend ended a request without an answer", in.model.spec.Name)
	case !bool(e.answer):
		return x.to.Respond(i, nil, nil, true)
	}
	outputs := make([]infer.Tensor, 0, int(e.output_count)+len(in.model.states))
	for k := range int(e.output_count) {
		t, err := in.tensor(x, &unsafe.Slice(e.outputs, int(e.output_count))[k])
		if err != nil {
			return err
		}
		if x.requests[i].Wants(t.Name) {
			outputs = append(outputs, t)
		}
	}
	if final && len(in.model.states) > 0 {
		states, err := in.states(x, i, e)
		if err != nil {
			return err
		}
		outputs = append(outputs, states...)
	}
	return x.to.Respond(i, outputs, paramsOf(unsafe.Slice(e.parameters, int(e.parameter_count))), final)
}

// errorIn is an answer's error.
func errorIn(e *C.th_event) error {
	return infer.Errorf(codeOf(e.error), "%s", C.GoString(C.th_error_text(e.error)))
}

// states are the request's states as they are now: those that the backend has updated, and else those it came with.
func (in *instance) states(x *running, i int, e *C.th_event) ([]infer.Tensor, error) {
	var all []infer.Tensor
	for _, s := range in.model.states {
		t, ok, err := in.updated(x, e, s.output)
		if err != nil {
			return nil, err
		}
		inputs := x.requests[i].Inputs()
		for k := 0; !ok && k < len(inputs); k++ {
			if inputs[k].Name == s.input {
				t, ok = inputs[k], true
				t.Name = s.output
			}
		}
		if ok {
			all = append(all, t)
		}
	}
	return all, nil
}

func (in *instance) updated(x *running, e *C.th_event, name string) (t infer.Tensor, ok bool, err error) {
	for k := range int(e.state_count) {
		s := &unsafe.Slice(e.states, int(e.state_count))[k]
		if C.GoString(s.name) == name {
			t, err = in.tensor(x, s)
			return t, err == nil, err
		}
	}
	return t, false, nil
}

// tensor is an output as the backend gave it. Its data is the library's, valid until the event is given back, or the
// batch's. An error is that it can't be.
func (in *instance) tensor(x *running, o *C.th_output) (infer.Tensor, error) {
	t := infer.Tensor{Name: in.model.goName(o.name), Datatype: infer.Datatype(o.datatype), Shape: make([]int64, 0, int(o.rank))}
	for _, d := range unsafe.Slice(o.shape, int(o.rank)) {
		t.Shape = append(t.Shape, int64(d))
	}
	refuse := func(format string, args ...any) (infer.Tensor, error) {
		why := infer.Errorf(infer.Internal, format, args...)
		return t, infer.Errorf(infer.Internal, "model '%s', output '%s': %w", in.model.spec.Name, t.Name, why)
	}
	if want := in.model.byName[t.Name]; want != t.Datatype {
		return refuse("the backend gave datatype %v, the config says %v", t.Datatype, want)
	}
	size := uint64(o.bytes)
	if size > math.MaxInt64 {
		return refuse("it has %d bytes", size)
	}
	if size > 0 {
		t.Data = in.data(x, o.data, int(size))
	}
	want, err := infer.ByteSize(t.Datatype, t.Shape)
	switch {
	case err != nil:
		return refuse("%w", err)
	case t.Datatype == infer.Bytes:
		n, err := infer.CountBytesElements(t.Data)
		if elements := elementsOf(t.Shape); err != nil || n != elements {
			return refuse("its %d bytes are not the %d elements of shape %v", size, elements, t.Shape)
		}
	case want != int64(size):
		return refuse("it has %d bytes, its shape %v takes %d", size, t.Shape, want)
	}
	return t, nil
}

func elementsOf(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// data is an output's memory: a part of the slab, which needs no copy, or the library's own.
func (in *instance) data(x *running, p unsafe.Pointer, n int) []byte {
	if len(x.slab) > 0 {
		base, at := uintptr(unsafe.Pointer(unsafe.SliceData(x.slab))), uintptr(p)
		if at >= base && at-base < uintptr(len(x.slab)) {
			from := int(at - base)
			return x.slab[from : from+n : from+n]
		}
	}
	return unsafe.Slice((*byte)(p), n)
}

// paramsOf are parameters of an answer, or a call.
func paramsOf(all []C.th_parameter) infer.Params {
	var params infer.Params
	for k := range all {
		p := &all[k]
		v := infer.Value{}
		switch p._type {
		case C.TRITONSERVER_PARAMETER_INT:
			v = infer.Value{Kind: infer.KindInt64, Int: int64(p.integer)}
		case C.TRITONSERVER_PARAMETER_BOOL:
			v = infer.Value{Kind: infer.KindBool, Bool: p.integer != 0}
		case C.TRITONSERVER_PARAMETER_DOUBLE:
			v = infer.Value{Kind: infer.KindDouble, Double: float64(p.number)}
		default:
			v = infer.Value{Kind: infer.KindString, Str: C.GoStringN(p.text, C.int(p.size))}
		}
		params = append(params, infer.Param{Name: C.GoString(p.name), Value: v})
	}
	return params
}
