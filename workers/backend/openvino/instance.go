package openvino

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/openvino/ov"
	"github.com/sluice-serve/sluice/workers/internal/watch"
)

// instance infers batch by batch. All of it but running is its goroutine's.
type instance struct {
	model   *model
	request *ov.Request
	running watch.Run
	// allocates says that OpenVINO allocates all outputs: they are not of the shapes that the model declares.
	allocates bool

	// Used anew for each batch.
	order   []int // input of the model that a batch's input was last, by place
	in, out []ov.Tensor
	spare   [][]uint64 // memory of outputs that nobody wants, by index
	answer  []infer.Tensor
}

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Close fits backend.Instance.
func (i *instance) Close() error {
	i.model.backend.watch.Remove(&i.running)
	i.request.Close()
	return nil
}

// Terminate ends the run in progress; the watch calls it.
func (i *instance) Terminate() error { return i.request.Terminate() }

// renew makes the infer request, which keeps where outputs were put.
func (i *instance) renew() error {
	r, err := i.model.compiled.NewRequest(len(i.model.plan.inputs), len(i.model.plan.outputs))
	if err != nil {
		return err
	}
	if i.request != nil {
		i.request.Close()
	}
	i.request = r
	return nil
}

// Execute fits backend.Instance: one run for the whole batch.
func (i *instance) Execute(b backend.Batch) error {
	requests := b.Requests()
	if watch.Cancelled(requests) {
		b.InferDone()
		return errCancelled()
	}
	if err := i.bindInputs(b); err != nil {
		return err
	}
	b.InputDone()
	err := i.run(b, requests)
	if err != nil && !i.allocates && !ov.Terminated(err) && ran(err) {
		// Perhaps an output is not as the model declares it; then OpenVINO allocates them all from now on.
		i.allocates = true
		if e := i.renewed(); e != nil {
			return e
		}
		if second := i.run(b, requests); second == nil {
			err = nil
			i.model.backend.log.Warn("the model's outputs have other shapes than it declares; they are copied from now on", "model", i.model.spec.Name)
		} else {
			i.allocates = false
			if e := i.renewed(); e != nil {
				return e
			}
		}
	}
	b.InferDone()
	switch {
	case err == nil:
		return i.finish(b)
	case ov.Terminated(err):
		return errCancelled()
	case !ran(err):
		return err
	}
	return infer.Errorf(infer.Internal, "OpenVINO execute failure: %w", i.model.failure(err))
}

// ran says that an error is OpenVINO's own, of a run.
func ran(err error) bool {
	var e *ov.Error
	return errors.As(err, &e)
}

func errCancelled() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "every request of the batch was cancelled")
}

// renewed is renew while the watch looks at the instance.
func (i *instance) renewed() error {
	i.model.backend.watch.Remove(&i.running)
	err := i.renew()
	i.model.backend.watch.Add(&i.running)
	if err != nil {
		return infer.Errorf(infer.Internal, "a new infer request: %w", i.model.failure(err))
	}
	return nil
}

// run infers once. Errors of OpenVINO are of package ov.
func (i *instance) run(b backend.Batch, requests []backend.Request) error {
	if err := i.bindOutputs(b); err != nil {
		return err
	}
	i.running.Begin(requests)
	defer i.running.End()
	return i.request.Run(i.in, i.out)
}

func (i *instance) bindInputs(b backend.Batch) error {
	inputs, name := b.Inputs(), i.model.spec.Name
	i.in = i.in[:0]
	for k := range inputs {
		t := &inputs[k]
		at := i.find(k, t.Name)
		if at < 0 {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s' for model '%s'", t.Name, name)
		}
		p := &i.model.plan.inputs[at]
		if t.Datatype != p.datatype {
			return infer.Errorf(infer.InvalidArg, "inference input '%s' data-type is '%s', but model '%s' expects '%s'", t.Name, t.Datatype, name, p.datatype)
		}
		if slices.ContainsFunc(i.in, func(o ov.Tensor) bool { return o.Index == at }) {
			return infer.Errorf(infer.InvalidArg, "input '%s' is given twice for model '%s'", t.Name, name)
		}
		size, err := infer.ByteSize(t.Datatype, t.Shape)
		if err != nil || size != int64(len(t.Data)) {
			return infer.Errorf(infer.InvalidArg, "input '%s' of shape %s has %d bytes, want %d", t.Name, shapeText(t.Shape), len(t.Data), size)
		}
		data := t.Data
		if n := uintptr(p.datatype.Size()); n > 1 && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%n != 0 {
			if data, err = b.Alloc(size); err != nil {
				return err
			}
			copy(data, t.Data)
		}
		in := ov.Tensor{Index: at, Type: p.typ, Shape: t.Shape, Data: data}
		if p.scalar && size == p.datatype.Size() {
			in.Shape = nil
		}
		i.in = append(i.in, in)
	}
	if len(i.in) != len(i.model.plan.inputs) {
		return infer.Errorf(infer.InvalidArg, "%d inputs for model '%s', which has %d", len(i.in), name, len(i.model.plan.inputs))
	}
	return nil
}

// find is the index of an input in the model, -1 where it has none. Batches name inputs in the same order again and again.
func (i *instance) find(place int, name string) int {
	if place < len(i.order) && i.model.plan.inputs[i.order[place]].name == name {
		return i.order[place]
	}
	at := slices.IndexFunc(i.model.plan.inputs, func(p port) bool { return p.name == name })
	if at >= 0 && place < len(i.order) {
		i.order[place] = at
	}
	return at
}

func wanted(requests []backend.Request, output string) bool {
	return slices.ContainsFunc(requests, func(r backend.Request) bool { return r.Wants(output) })
}

// bindOutputs gives outputs of known shape memory: also those that nobody wants, since the infer request remembers
// where they were put before.
func (i *instance) bindOutputs(b backend.Batch) error {
	ports, requests := i.model.plan.outputs, b.Requests()
	for len(i.out) < len(ports) {
		i.out = append(i.out, ov.Tensor{Index: len(i.out)})
		i.spare = append(i.spare, nil)
	}
	for k := range ports {
		p, o := &ports[k], &i.out[k]
		o.Type, o.Shape, o.Data = p.typ, o.Shape[:0], nil
		if p.shape == nil || i.allocates {
			continue
		}
		for _, d := range p.shape {
			if d < 0 {
				d = int64(b.Rows())
			}
			o.Shape = append(o.Shape, d)
		}
		size, err := infer.ByteSize(p.datatype, o.Shape)
		if err != nil {
			return infer.Errorf(infer.InvalidArg, "output '%s': %w", p.name, err)
		}
		switch {
		case size == 0:
			o.Data = empty[:0]
		case !wanted(requests, p.name):
			if n := (size + 7) / 8; int64(len(i.spare[k])) < n {
				i.spare[k] = make([]uint64, n)
			}
			o.Data = unsafe.Slice((*byte)(unsafe.Pointer(&i.spare[k][0])), size)
		case p.datatype.IsFloat():
			o.Data, err = b.AllocOutput(p.name, size)
		default:
			// The graph may use its outputs as indices: nobody else may change them meanwhile.
			o.Data, err = b.Alloc(size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var empty [8]byte // under tensors without elements

// finish answers the batch.
func (i *instance) finish(b backend.Batch) error {
	defer i.request.Release()
	i.answer = i.answer[:0]
	requests := b.Requests()
	for k := range i.out {
		p, o := &i.model.plan.outputs[k], &i.out[k]
		if !wanted(requests, p.name) {
			continue
		}
		data := o.Data
		if p.shape == nil || i.allocates {
			if o.Type != p.typ {
				return infer.Errorf(infer.Internal, "output '%s' has another datatype than the model declares", p.name)
			}
			var err error
			if data, err = b.AllocOutput(p.name, int64(len(o.Data))); err != nil {
				return err
			}
			copy(data, o.Data)
		}
		shape := o.Shape
		if p.scalar && !i.configScalar(p.name) {
			shape = []int64{1}
		}
		i.answer = append(i.answer, infer.Tensor{Name: p.name, Datatype: p.datatype, Shape: shape, Data: data})
	}
	return b.Outputs(i.answer)
}

// configScalar says that the config gives an output no dimension either.
func (i *instance) configScalar(name string) bool {
	for _, out := range i.model.spec.Config.GetOutput() {
		if out.GetName() == name {
			return len(dims(out)) == 0
		}
	}
	return true
}
