package backendtest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// Request is one request of a Batch. Inputs are its own tensors; where the model has
// a batch dimension their first dimension is Rows.
type Request struct {
	ID          string
	Rows        int // 0 for a model without batch dimension
	Inputs      []infer.Tensor
	Params      infer.Params
	Outputs     []string // names asked for; empty: all
	Correlation infer.Correlation
	Start, End  bool
}

// Answer is what a request of a Batch got.
type Answer struct {
	Responses []infer.Response // in order; the last has Final set unless Err is
	Err       error            // it failed, after what Responses hold
	Final     bool             // it has its final answer
}

// Batch is a backend.Batch in plain memory.
type Batch struct {
	rows     int
	inputs   []infer.Tensor
	requests []backend.Request
	own      []*request
	answers  []Answer
	blocks   [][]byte
	faults   []string
	ended    bool
	kept     *openBatch // what Keep gave; nil: nothing

	mu sync.Mutex // over all of it once it is kept

	// InputMarks and InferMarks count the calls of InputDone and InferDone.
	InputMarks, InferMarks int
	// AllocLimit bounds what Alloc gives in all; 0: no bound.
	AllocLimit int64
	// OutputRoom bounds what AllocOutput gives a request that is alone; 0: no bound.
	OutputRoom int64
	// Placed has what AllocOutput gave for an output of a request that is alone.
	Placed    map[string][]byte
	allocated int64

	// Device is the memory of the GPU that the instance lives on; nil: there is none.
	Device Device
	device []deviceTensor
}

// NewBatch concatenates the requests' inputs. All must have inputs of the same names,
// in the same order; what does not fit together is a mistake of the test and panics.
func NewBatch(requests ...Request) *Batch {
	b := &Batch{answers: make([]Answer, len(requests))}
	for i := range requests {
		r := &requests[i]
		b.rows += r.Rows
		own := &request{Request: r}
		b.own = append(b.own, own)
		b.requests = append(b.requests, own)
		if i == 0 {
			b.inputs = cloneTensors(r.Inputs)
			continue
		}
		for k := range r.Inputs {
			b.append(k, &r.Inputs[k])
		}
	}
	for k := range b.inputs {
		b.inputs[k].Data = alignedCopy(b.inputs[k].Data)
	}
	return b
}

func (b *Batch) append(k int, t *infer.Tensor) {
	whole := &b.inputs[k]
	if whole.Name != t.Name || whole.Datatype != t.Datatype || len(t.Shape) == 0 {
		panic(fmt.Sprintf("backendtest: input %q does not continue %q", t.Name, whole.Name))
	}
	whole.Shape[0] += t.Shape[0]
	whole.Data = append(whole.Data, t.Data...)
}

// Cancel flags request i as cancelled. Any goroutine may call it.
func (b *Batch) Cancel(i int) {
	b.own[i].cancelled.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept != nil {
		b.kept.tell(i)
	}
}

// Run executes b on inst and ends it by the rules: an error of Execute goes to the
// requests without final answer; without one, every request must have its own. A batch that
// was kept is waited for.
func (b *Batch) Run(inst backend.Instance) {
	b.Begin(inst)
	b.Wait()
}

// Begin is Run without waiting for a batch that was kept.
func (b *Batch) Begin(inst backend.Instance) {
	b.End(inst.Execute(b))
}

// End does what a worker does after Execute returned err.
func (b *Batch) End(err error) {
	if b.kept != nil {
		b.kept.left(err)
		return
	}
	b.ended = true
	for i := range b.answers {
		a := &b.answers[i]
		if a.Final {
			continue
		}
		if err == nil {
			b.fault("request %d has no final answer, and Execute returned no error", i)
			err = infer.Errorf(infer.Internal, "no answer")
		}
		a.Err, a.Final = err, true
	}
}

// Answers are what the requests got so far.
func (b *Batch) Answers() []Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.answers)
}

// Faults are the broken rules of backend.Batch, in words.
func (b *Batch) Faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.faults)
}

func (b *Batch) fault(format string, args ...any) error {
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
	return infer.Errorf(infer.Internal, format, args...)
}

// Rows fits backend.Batch.
func (b *Batch) Rows() int { return b.rows }

// Inputs fits backend.Batch.
func (b *Batch) Inputs() []infer.Tensor { return b.inputs }

// Requests fits backend.Batch.
func (b *Batch) Requests() []backend.Request { return b.requests }

// InputDone fits backend.Batch.
func (b *Batch) InputDone() { b.InputMarks++ }

// InferDone fits backend.Batch.
func (b *Batch) InferDone() { b.InferMarks++ }

// Alloc fits backend.Batch. The memory holds garbage, as an arena's does.
func (b *Batch) Alloc(n int64) ([]byte, error) {
	if b.kept != nil {
		return nil, b.misuse()
	}
	return b.alloc(n)
}

func (b *Batch) alloc(n int64) ([]byte, error) {
	if n < 0 {
		return nil, b.fault("Alloc of %d bytes", n)
	}
	if b.AllocLimit > 0 && b.allocated+n > b.AllocLimit {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "the response memory is full")
	}
	b.allocated += n
	mem := aligned(int(n))
	for i := range mem {
		mem[i] = 0xA5
	}
	b.blocks = append(b.blocks, mem)
	return mem, nil
}

// AllocOutput fits backend.Batch: memory of its own for each output, which Placed has.
func (b *Batch) AllocOutput(name string, n int64) ([]byte, error) {
	if b.OutputRoom > 0 && n > b.OutputRoom && len(b.own) == 1 {
		return nil, infer.Errorf(infer.Internal, "%d bytes of output '%s' have no room", n, name)
	}
	mem, err := b.Alloc(n)
	if err == nil && len(b.own) == 1 {
		if b.Placed == nil {
			b.Placed = map[string][]byte{}
		}
		b.Placed[name] = mem
	}
	return mem, err
}

// Passes fits backend.Batch.
func (b *Batch) Passes(string, []byte) bool { return false }

// Outputs fits backend.Batch.
func (b *Batch) Outputs(outputs []infer.Tensor) error {
	if b.kept != nil {
		return b.misuse()
	}
	outputs, err := b.fetch(outputs)
	if err != nil {
		return err
	}
	if err := b.check(outputs); err != nil {
		return err
	}
	first := 0
	for i, r := range b.own {
		part := outputs
		if b.rows > 0 {
			var err error
			if part, err = infer.Split(nil, outputs, b.rows, first, r.Rows()); err != nil {
				return b.fault("outputs don't split: %v", err)
			}
		}
		first += r.Rows()
		if b.answers[i].Final {
			continue
		}
		b.add(i, part, nil, true)
	}
	return nil
}

// Respond fits backend.Batch.
func (b *Batch) Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	if b.kept != nil {
		return b.misuse()
	}
	return b.respond(i, outputs, params, final)
}

func (b *Batch) respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	if b.ended || i < 0 || i >= len(b.answers) || b.answers[i].Final {
		return b.fault("answer to request %d, which has its final one", i)
	}
	outputs, err := b.fetch(outputs)
	if err != nil {
		return err
	}
	if err := b.check(outputs); err != nil {
		return err
	}
	b.add(i, outputs, params, final)
	return nil
}

// Repeat fits backend.Batch; the suite has no iterative models.
func (b *Batch) Repeat(i int, _ []infer.Tensor) error {
	return b.fault("request %d is to be repeated, and the model is not iterative", i)
}

// Fail fits backend.Batch.
func (b *Batch) Fail(i int, err error) error {
	if b.kept != nil {
		return b.misuse()
	}
	return b.fail(i, err)
}

func (b *Batch) fail(i int, err error) error {
	if b.ended || i < 0 || i >= len(b.answers) || b.answers[i].Final || err == nil {
		return b.fault("failure %v of request %d, which has its final answer", err, i)
	}
	b.answers[i].Err, b.answers[i].Final = err, true
	return nil
}

// RespondError fits backend.Batch: the error is among the Responses, as their Err.
func (b *Batch) RespondError(i int, err error) (open bool, fault error) {
	if b.kept != nil {
		return false, b.misuse()
	}
	return b.respondError(i, err)
}

func (b *Batch) respondError(i int, err error) (open bool, fault error) {
	if b.ended || i < 0 || i >= len(b.answers) || b.answers[i].Final || err == nil {
		return false, b.fault("answer %v to request %d, which has its final answer", err, i)
	}
	b.answers[i].Responses = append(b.answers[i].Responses, infer.Response{Err: err})
	return true, nil
}

func (b *Batch) add(i int, outputs []infer.Tensor, params infer.Params, final bool) {
	a := &b.answers[i]
	a.Responses = append(a.Responses, infer.Response{Outputs: cloneTensors(outputs), Params: params, Final: final})
	a.Final = final
}

func (b *Batch) check(outputs []infer.Tensor) error {
	if b.ended {
		return b.fault("answer after Execute returned")
	}
	for i := range outputs {
		if err := CheckTensor(&outputs[i]); err != nil {
			return b.fault("%v", err)
		}
	}
	return nil
}

// CheckTensor says whether the data of t fits its datatype and shape.
func CheckTensor(t *infer.Tensor) error {
	n, err := infer.Elements(t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	got := int64(len(t.Data))
	want := n * t.Datatype.Size()
	if t.Datatype == infer.Bytes {
		got, err = infer.CountBytesElements(t.Data)
		want = n
	}
	if err != nil || got != want || t.Datatype == infer.Invalid {
		return fmt.Errorf("tensor %q of %s %v has %d bytes or elements, want %d: %w", t.Name, t.Datatype, t.Shape, got, want, err)
	}
	return nil
}

type request struct {
	*Request
	cancelled atomic.Bool
}

func (r *request) ID() string           { return r.Request.ID }
func (r *request) Rows() int            { return r.Request.Rows }
func (r *request) Params() infer.Params { return r.Request.Params }
func (r *request) Cancelled() bool      { return r.cancelled.Load() }

// Gateway is nil: no gateway takes calls.
func (r *request) Gateway() backend.Gateway { return nil }

func (r *request) Correlation() (infer.Correlation, bool, bool) {
	return r.Request.Correlation, r.Request.Start, r.Request.End
}

func (r *request) Wants(output string) bool {
	if len(r.Request.Outputs) == 0 {
		return true
	}
	for _, name := range r.Request.Outputs {
		if name == output {
			return true
		}
	}
	return false
}

func (r *request) Inputs() []infer.Tensor { return r.Request.Inputs }

func cloneTensors(ts []infer.Tensor) []infer.Tensor {
	out := make([]infer.Tensor, len(ts))
	for i, t := range ts {
		t.Shape = append([]int64{}, t.Shape...)
		t.Data = append([]byte{}, t.Data...)
		out[i] = t
	}
	return out
}

func aligned(n int) []byte {
	raw := make([]byte, n+64)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & 63)
	return raw[skip : skip+n : skip+n]
}

func alignedCopy(b []byte) []byte {
	out := aligned(len(b))
	copy(out, b)
	return out
}

// BytesTensor makes a BYTES tensor of the elements.
func BytesTensor(name string, shape []int64, elements ...string) infer.Tensor {
	var data []byte
	for _, e := range elements {
		data = binary.LittleEndian.AppendUint32(data, uint32(len(e)))
		data = append(data, e...)
	}
	return infer.Tensor{Name: name, Datatype: infer.Bytes, Shape: shape, Data: data}
}
