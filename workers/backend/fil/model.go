package fil

import (
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// Bounds on what is evaluated at a time, between looks at whether anybody still waits: steps through trees, and values of
// memory for what lies between.
const (
	stepBudget  = 1 << 20
	valueBudget = 1 << 22
)

// model is a loaded version; its instances share the forest.
type model struct {
	forest  *forest.Forest
	out     output
	wideIn  bool // the input is FP64
	wideOut bool
	threads int
}

func newModel(cfg *modelconfig.ModelConfig, f *forest.Forest, s *settings) (*model, error) {
	if err := check(cfg, f); err != nil {
		return nil, err
	}
	m := &model{forest: f, out: newOutput(f, s), threads: s.threads}
	m.wideIn = inputOf(cfg).GetDataType() == modelconfig.DataType_TYPE_FP64
	m.wideOut = outputOf(cfg).GetDataType() == modelconfig.DataType_TYPE_FP64
	dims := shapeOf(outputOf(cfg))
	if len(dims) > 1 && cfg.GetMaxBatchSize() == 0 && len(shapeOf(inputOf(cfg))) == 2 { // rows, without a batch dimension
		dims = dims[1:]
	}
	return m, m.out.fit(dims, s, f)
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	if spec.GPU {
		return nil, infer.Errorf(infer.Unsupported, "trees are computed on the CPU: instance '%s' can't be of KIND_GPU", spec.Name)
	}
	return &instance{model: m}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return m.forest.Close() }

// chunk is how many rows are evaluated at a time by one thread.
func (m *model) chunk() int {
	f := m.forest
	most := max(1, valueBudget/max(1, f.Features, f.Targets*f.Classes))
	return min(most, max(64, stepBudget/max(1, f.Trees)))
}

// instance executes batches.
type instance struct {
	model   *model
	input   []byte    // of a batch, where it is not aligned
	scratch []scratch // of each thread
}

// scratch is memory of one thread, where tensors are not of the forest's type or not what it predicts.
type scratch struct{ in, out []byte }

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Close fits backend.Instance.
func (*instance) Close() error { return nil }

var errGone = errors.New("nobody waits for the answer")

// Execute fits backend.Instance.
func (inst *instance) Execute(b backend.Batch) error {
	m := inst.model
	in := b.Inputs()
	size := 4
	if m.wideIn {
		size = 8
	}
	if len(in) != 1 || len(in[0].Shape) == 0 {
		return infer.Errorf(infer.InvalidArg, "a model of trees takes one input, '%s'", inputName)
	}
	shape := in[0].Shape
	if got := shape[len(shape)-1]; got != int64(m.forest.Features) {
		return infer.Errorf(infer.InvalidArg, "input '%s' has %d values in a row, and the model has %d features", inputName, got, m.forest.Features)
	}
	rows := len(in[0].Data) / (size * m.forest.Features)
	data := in[0].Data[:rows*size*m.forest.Features]
	if !aligned(data, size) { // a client's own memory, perhaps
		inst.input = room(inst.input, len(data))
		copy(inst.input, data)
		data = inst.input
	}
	b.InputDone()
	outSize := 4
	if m.wideOut {
		outSize = 8
	}
	out, err := b.AllocOutput(outputName, int64(rows)*int64(m.out.width())*int64(outSize))
	if err != nil {
		return err
	}
	requests := b.Requests()
	if err := inst.rows(data, out, rows, func() bool { return gone(requests) }); err != nil {
		return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")
	}
	b.InferDone()
	t := infer.Tensor{Name: outputName, Datatype: infer.FP32, Shape: m.shape(shape, rows), Data: out}
	if m.wideOut {
		t.Datatype = infer.FP64
	}
	return b.Outputs([]infer.Tensor{t})
}

// shape is that of the output for an input's.
func (m *model) shape(in []int64, rows int) []int64 {
	if len(in) == 1 { // one row, without a dimension for it
		return m.out.shape
	}
	s := make([]int64, 0, 1+len(m.out.shape))
	return append(append(s, int64(rows)), m.out.shape...)
}

func gone(requests []backend.Request) bool {
	for _, r := range requests {
		if !r.Cancelled() {
			return false
		}
	}
	return true
}

// rows evaluates all, by as many threads as the model may have. An error is that nobody waits any more.
func (inst *instance) rows(in, out []byte, rows int, gone func() bool) error {
	m := inst.model
	step := m.chunk()
	threads := min(m.threads, (rows+step-1)/step)
	for len(inst.scratch) < max(1, threads) {
		inst.scratch = append(inst.scratch, scratch{})
	}
	inWidth, outWidth := len(in)/max(1, rows), len(out)/max(1, rows)
	part := func(thread int) error {
		for first := thread * step; first < rows; first += threads * step {
			if first > 0 && gone() {
				return errGone
			}
			n := min(step, rows-first)
			m.predict(&inst.scratch[thread], in[first*inWidth:(first+n)*inWidth], out[first*outWidth:(first+n)*outWidth], n)
		}
		return nil
	}
	if threads <= 1 {
		return part(0)
	}
	errs := make([]error, threads)
	var all sync.WaitGroup
	for i := 1; i < threads; i++ {
		all.Go(func() { errs[i] = part(i) })
	}
	errs[0] = part(0)
	all.Wait()
	return errors.Join(errs...)
}

// predict evaluates some rows and makes answers of them.
func (m *model) predict(s *scratch, in, out []byte, rows int) {
	f := m.forest
	real := 4
	if f.Wide {
		real = 8
	}
	if m.wideIn != f.Wide {
		s.in = room(s.in, rows*f.Features*real)
		if f.Wide {
			convert(reals[float32](in), reals[float64](s.in))
		} else {
			convert(reals[float64](in), reals[float32](s.in))
		}
		in = s.in
	}
	if m.out.how == asTheyAre && m.wideOut == f.Wide {
		f.Predict(in, out, rows)
		return
	}
	s.out = room(s.out, rows*f.Targets*f.Classes*real)
	f.Predict(in, s.out, rows)
	if f.Wide {
		answers(m, reals[float64](s.out), out)
	} else {
		answers(m, reals[float32](s.out), out)
	}
}

// answers makes answers of predictions in the type of the output.
func answers[R real](m *model, from []R, out []byte) {
	if m.wideOut {
		answer(&m.out, from, reals[float64](out))
	} else {
		answer(&m.out, from, reals[float32](out))
	}
}

func convert[R, W real](from []R, to []W) {
	for i, v := range from {
		to[i] = W(v)
	}
}

// room is memory of n bytes, aligned to 8; what it had is gone.
func room(b []byte, n int) []byte {
	if cap(b) >= n {
		return b[:n]
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

func aligned(b []byte, to int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(to) == 0
}

// reals are the bytes' values. They are aligned to their type.
func reals[R real](b []byte) []R {
	var v R
	return unsafe.Slice((*R)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(v)))
}
