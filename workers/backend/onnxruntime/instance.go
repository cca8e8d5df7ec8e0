//go:build onnxruntime && cgo

package onnxruntime

import (
	"strings"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
	"github.com/sluice-serve/sluice/workers/internal/watch"
)

// instance runs batches on its thread. Everything in it but running is its goroutine's.
type instance struct {
	model   *model
	plans   *plans
	own     *ort.Session // nil where the session is the model's
	call    *ort.Call
	running watch.Run
	failure cleaner

	// Used anew for each batch.
	order  []int     // input index in the model that a batch's input had last, by place
	given  [][]int64 // shapes of the inputs by their index in the model
	wanted []wanted
	answer []infer.Tensor
}

// wanted is an output of the run in progress.
type wanted struct {
	index int
	data  []byte  // allocated before the run; nil: ONNX Runtime allocates
	shape []int64 // its own memory is kept from batch to batch
}

func newInstance(m *model, s *ort.Session, call *ort.Call) *instance {
	i := &instance{model: m, plans: m.plans, call: call, failure: m.runtime.cleaner(m.spec),
		order:  make([]int, len(s.Inputs)),
		given:  make([][]int64, len(s.Inputs)),
		wanted: make([]wanted, 0, len(s.Outputs)),
		answer: make([]infer.Tensor, 0, len(s.Outputs)),
	}
	for k := range i.order {
		i.order[k] = k
	}
	i.running.Call = call
	return i
}

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Execute runs the whole batch with one call into ONNX Runtime and answers it with
// Batch.Outputs.
func (i *instance) Execute(b backend.Batch) error {
	requests := b.Requests()
	if watch.Cancelled(requests) {
		b.InferDone()
		return errCancelled()
	}
	i.running.Begin(requests)
	defer i.settle()
	again, err := i.try(b, b.InputDone)
	if again {
		_, err = i.try(b, func() {})
	}
	return err
}

func errCancelled() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "every request of the batch was cancelled")
}

// settle ends the run for the watch; a run that was told to end must not end the next.
func (i *instance) settle() {
	if i.running.End() {
		if err := i.call.Resume(); err != nil {
			i.model.runtime.log.Error("an instance can't run any more", "model", i.model.spec.Name, "error", err)
		}
	}
}

// try runs the batch once. again says that the model's outputs are not as declared:
// the next try lets ONNX Runtime allocate them.
func (i *instance) try(b backend.Batch, inputDone func()) (again bool, err error) {
	i.call.Reset()
	if err := i.bindInputs(b); err != nil {
		return false, err
	}
	i.chooseOutputs(b.Requests())
	allocated, err := i.bindOutputs(b)
	if err != nil {
		return false, err
	}
	if len(i.wanted) == 0 {
		b.InferDone()
		return false, b.Outputs(nil)
	}
	inputDone()
	err = i.call.Run()
	if err != nil {
		if i.running.Terminated() {
			b.InferDone()
			return false, errCancelled()
		}
		if allocated && misdeclared(err) {
			i.distrust()
			return true, nil
		}
		b.InferDone()
		return false, i.failure.run(err)
	}
	b.InferDone()
	return false, i.finish(b)
}

// misdeclared recognises ONNX Runtime's refusal of an output of ours whose shape is not
// the one that it computed. It has no code of its own: "The output OrtValue provided for
// output 'Y' … has shape", in older libraries "OrtValue shape verification failed".
func misdeclared(err error) bool { return strings.Contains(err.Error(), "OrtValue") }

func (i *instance) distrust() {
	for k := range i.wanted {
		if w := &i.wanted[k]; w.data != nil {
			i.plans.outputs[w.index].declared.Store(false)
		}
	}
	i.model.runtime.log.Warn("the model's outputs have other shapes than it declares; they are copied from now on",
		"model", i.model.spec.Name)
}

func (i *instance) bindInputs(b backend.Batch) error {
	clear(i.given)
	inputs := b.Inputs()
	for k := range inputs {
		t := &inputs[k]
		index := i.find(k, t.Name)
		if index < 0 {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s' for model '%s'", t.Name, i.model.spec.Name)
		}
		in := &i.plans.inputs[index]
		if t.Datatype != in.datatype {
			return infer.Errorf(infer.InvalidArg, "inference input '%s' data-type is '%s', but model '%s' expects '%s'",
				t.Name, t.Datatype, i.model.spec.Name, in.datatype)
		}
		if i.given[index] != nil {
			return infer.Errorf(infer.InvalidArg, "input '%s' is given twice for model '%s'", t.Name, i.model.spec.Name)
		}
		if err := i.bindInput(b, t, index); err != nil {
			return err
		}
	}
	return nil
}

var noDims = []int64{} // a shape without dimensions, unlike nil

func (i *instance) bindInput(b backend.Batch, t *infer.Tensor, index int) error {
	in := &i.plans.inputs[index]
	count, err := infer.Elements(t.Shape)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "input '%s': %w", t.Name, err)
	}
	size := in.datatype.Size()
	if size > 0 && int64(len(t.Data)) != count*size {
		return infer.Errorf(infer.InvalidArg, "input '%s' of shape %s has %d bytes, want %d", t.Name, shapeText(t.Shape), len(t.Data), count*size)
	}
	if size == 0 && count > int64(len(t.Data))/4 {
		return infer.Errorf(infer.InvalidArg, "input '%s' of shape %s has %d bytes, too few for %d elements", t.Name, shapeText(t.Shape), len(t.Data), count)
	}
	shape := t.Shape
	if shape == nil || in.scalar && count == 1 {
		shape = noDims
	}
	data := t.Data
	if size > 1 && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) != 0 {
		if data, err = b.Alloc(int64(len(t.Data))); err != nil {
			return err
		}
		copy(data, t.Data)
	}
	i.given[index] = t.Shape
	if t.Shape == nil {
		i.given[index] = noDims
	}
	return i.failed(i.call.SetInput(index, in.typ, shape, count, data))
}

func (i *instance) failed(err error) error {
	if err == nil {
		return nil
	}
	return i.failure.run(err)
}

// find gives the index of an input in the model, -1 where it has none. Batches name
// inputs in the same order again and again.
func (i *instance) find(place int, name string) int {
	if place < len(i.order) && i.plans.inputs[i.order[place]].name == name {
		return i.order[place]
	}
	for k := range i.plans.inputs {
		if i.plans.inputs[k].name == name {
			if place < len(i.order) {
				i.order[place] = k
			}
			return k
		}
	}
	return -1
}

// chooseOutputs keeps those that any request asks for.
func (i *instance) chooseOutputs(requests []backend.Request) {
	i.wanted = i.wanted[:0]
	for k := range i.plans.outputs {
		for _, r := range requests {
			if r.Wants(i.plans.outputs[k].name) {
				n := len(i.wanted)
				i.wanted = i.wanted[:n+1]
				i.wanted[n].index, i.wanted[n].data = k, nil
				break
			}
		}
	}
}

// bindOutputs allocates the outputs whose shape is known and says whether there are any.
func (i *instance) bindOutputs(b backend.Batch) (allocated bool, err error) {
	for k := range i.wanted {
		w := &i.wanted[k]
		o := &i.plans.outputs[w.index]
		w.shape = w.shape[:0]
		if o.declared.Load() {
			if err := w.allocate(b, o, i.given); err != nil {
				return allocated, err
			}
		}
		allocated = allocated || w.data != nil
		if err := i.failed(i.call.SetOutput(w.index, o.typ, w.shape, w.data)); err != nil {
			return allocated, err
		}
	}
	return allocated, nil
}

func (w *wanted) allocate(b backend.Batch, o *output, given [][]int64) error {
	shape, ok := o.resolve(w.shape, int64(b.Rows()), given)
	w.shape = shape
	if !ok {
		return nil
	}
	size, err := infer.ByteSize(o.datatype, shape)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "output '%s': %w", o.name, err)
	}
	if size == 0 {
		w.data = []byte{}
		return nil
	}
	if o.datatype.IsFloat() {
		w.data, err = b.AllocOutput(o.name, size)
	} else {
		// The graph may use its outputs as indices: nobody else may change them meanwhile.
		w.data, err = b.Alloc(size)
	}
	return err
}

// finish copies what ONNX Runtime allocated and answers the batch.
func (i *instance) finish(b backend.Batch) error {
	defer i.call.Release()
	i.answer = i.answer[:0]
	for k := range i.wanted {
		w := &i.wanted[k]
		o := &i.plans.outputs[w.index]
		if w.data == nil {
			if err := i.fetch(b, k, w, o); err != nil {
				return err
			}
		}
		shape := w.shape
		if o.shape != nil && len(shape) == 0 {
			shape = o.shape
		}
		i.answer = append(i.answer, infer.Tensor{Name: o.name, Datatype: o.datatype, Shape: shape, Data: w.data})
	}
	return b.Outputs(i.answer)
}

func (i *instance) fetch(b backend.Batch, k int, w *wanted, o *output) error {
	typ, shape, data, size := i.call.Output(k, w.shape[:0], o.datatype.Size())
	w.shape = shape
	if typ != o.typ {
		return infer.Errorf(infer.Internal, "output '%s' has datatype %s, the model declares %s", o.name, datatypeOf(typ), o.datatype)
	}
	if size == 0 {
		w.data = []byte{}
		return nil
	}
	var err error
	if o.datatype == infer.Bytes {
		if w.data, err = b.Alloc(size); err != nil {
			return err
		}
		return i.failed(i.call.Strings(k, w.data))
	}
	if w.data, err = b.AllocOutput(o.name, size); err != nil {
		return err
	}
	copy(w.data, data)
	return nil
}
