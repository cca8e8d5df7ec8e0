package identity

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// maxDelay bounds every delay that a config or a request may ask for.
const maxDelay = time.Hour

// slice is how long a delay sleeps before it looks for cancellations again.
const slice = time.Millisecond

// New is a backend.Factory. The option device-memory=true makes instances on GPUs take
// tensors in device memory, and leave theirs there; others are ignored.
func New(options map[string]string) (backend.Backend, error) {
	return identity{onDevice: options["device-memory"] == "true"}, nil
}

type identity struct{ onDevice bool }

// Info fits backend.Backend.
func (id identity) Info() backend.Info {
	info := backend.Info{GPU: true}
	if id.onDevice {
		info.Memory = []worker.MemoryKind{worker.MemoryKind_HOST, worker.MemoryKind_DEVICE}
	}
	return info
}

// Close fits backend.Backend.
func (identity) Close() error { return nil }

// Describe is Unsupported: there is no file that would tell.
func (identity) Describe(context.Context, backend.Spec) (*backend.Description, error) {
	return nil, infer.Errorf(infer.Unsupported, "the identity backend has no model file that declares tensors")
}

// Load checks that every output has its input. The model file need not exist.
func (id identity) Load(_ context.Context, spec backend.Spec) (backend.Model, error) {
	c := spec.Config
	m := &model{onDevice: id.onDevice, outputs: make([]output, 0, len(c.GetOutput()))}
	for i, o := range c.GetOutput() {
		in, err := sourceOf(c, i)
		if err != nil {
			return nil, err
		}
		m.outputs = append(m.outputs, output{name: o.GetName(), input: in})
	}
	if len(m.outputs) == 0 {
		return nil, infer.Errorf(infer.InvalidArg, "the identity backend wants at least one input and one output in the model config")
	}
	var err error
	if m.delay, err = delayOf(c, "execute_delay_ms"); err != nil {
		return nil, err
	}
	if m.creation, err = delayOf(c, "creation_delay_ms"); err != nil {
		return nil, err
	}
	for _, in := range c.GetInput() {
		m.ragged = m.ragged || in.GetAllowRaggedBatch() || in.GetIsShapeTensor()
	}
	m.iterative, m.decoupled = c.GetSequenceBatching().GetIterativeSequence(), c.GetModelTransactionPolicy().GetDecoupled()
	m.allowCrash = c.GetParameters()["allow_crash"].GetStringValue() == "true"
	return m, nil
}

// sourceOf finds the input that output i returns.
func sourceOf(c *modelconfig.ModelConfig, i int) (string, error) {
	out := c.GetOutput()[i]
	var in *modelconfig.ModelInput
	if suffix, ok := strings.CutPrefix(out.GetName(), "OUTPUT"); ok {
		for _, candidate := range c.GetInput() {
			if candidate.GetName() == "INPUT"+suffix {
				in = candidate
			}
		}
	}
	if in == nil && i < len(c.GetInput()) {
		in = c.GetInput()[i]
	}
	if in == nil {
		return "", infer.Errorf(infer.InvalidArg, "output '%s' has no input to return: %d inputs, %d outputs", out.GetName(),
			len(c.GetInput()), len(c.GetOutput()))
	}
	if in.GetDataType() != out.GetDataType() {
		return "", infer.Errorf(infer.InvalidArg, "output '%s' is %v, but input '%s', which it returns, is %v", out.GetName(),
			out.GetDataType(), in.GetName(), in.GetDataType())
	}
	return in.GetName(), nil
}

func delayOf(c *modelconfig.ModelConfig, name string) (time.Duration, error) {
	p, ok := c.GetParameters()[name]
	if !ok {
		return 0, nil
	}
	ms, err := strconv.ParseFloat(p.GetStringValue(), 64)
	if err != nil || !(ms >= 0) || ms > float64(maxDelay/time.Millisecond) {
		return 0, infer.Errorf(infer.InvalidArg, "parameter '%s' is '%s', want milliseconds from 0 to %d", name, p.GetStringValue(),
			maxDelay/time.Millisecond)
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}

type output struct{ name, input string }

type model struct {
	outputs    []output
	delay      time.Duration
	creation   time.Duration
	allowCrash bool
	onDevice   bool // its instances on GPUs use device memory
	iterative  bool // requests may be executed several times
	decoupled  bool // and answered each time
	ragged     bool // a batch's inputs are not all rows: requests are answered one by one
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(ctx context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	pause(m.creation, func() bool { return ctx.Err() != nil })
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &instance{model: m, onDevice: m.onDevice && spec.GPU}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return nil }

type instance struct {
	model    *model
	onDevice bool
	out      []infer.Tensor // reused by every execution
	// executions counts those of requests that are not at their end, by sequence.
	executions map[infer.Correlation]int64
}

// Close fits backend.Instance.
func (inst *instance) Close() error { return nil }

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Execute fits backend.Instance.
func (inst *instance) Execute(b backend.Batch) error {
	requests := b.Requests()
	delay, single := inst.model.delay, inst.model.ragged || inst.model.iterative
	for i, r := range requests {
		single = single || inst.differs(requests[0], r)
		if len(r.Params()) == 0 {
			continue
		}
		d, err := inst.params(r.Params())
		if err != nil {
			single = true
			if err := b.Fail(i, err); err != nil {
				return err
			}
			continue
		}
		delay = max(delay, d)
	}
	b.InputDone()
	if delay > 0 && pause(delay, func() bool { return allCancelled(requests) }) {
		return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")
	}
	if !single {
		inst.out = inst.gather(inst.out[:0], b.Inputs(), requests[0])
		b.InferDone()
		return inst.answer(b, -1)
	}
	b.InferDone()
	return inst.each(b)
}

// each answers the requests one by one: they want different outputs, or one failed.
func (inst *instance) each(b backend.Batch) error {
	for i, r := range b.Requests() {
		if _, ok := r.Params().Get("fail"); ok {
			continue
		}
		inst.out = inst.gather(inst.out[:0], r.Inputs(), r)
		if inst.model.iterative && inst.again(r) {
			if err := inst.repeat(b, i); err != nil {
				return err
			}
			continue
		}
		if err := inst.answer(b, i); err != nil {
			return err
		}
	}
	return nil
}

// maxExecutions bounds the requests whose executions are counted at a time.
const maxExecutions = 1 << 16

// again counts an execution of an iterative request, and says that others follow.
func (inst *instance) again(r backend.Request) bool {
	v, ok := r.Params().Get("iterations")
	if !ok || v.Kind != infer.KindInt64 && v.Kind != infer.KindUint64 || r.Cancelled() {
		return false
	}
	id, start, _ := r.Correlation()
	if start {
		delete(inst.executions, id)
	}
	n := inst.executions[id] + 1
	if n >= v.Int || len(inst.executions) >= maxExecutions {
		delete(inst.executions, id)
		return false
	}
	if inst.executions == nil {
		inst.executions = make(map[infer.Correlation]int64)
	}
	inst.executions[id] = n
	return true
}

// repeat asks for one more execution of request i; a decoupled model answers each.
func (inst *instance) repeat(b backend.Batch, i int) error {
	if inst.model.decoupled {
		if err := inst.send(b, i, false); err != nil {
			return err
		}
	}
	return b.Repeat(i, nil)
}

// params reads what a request asks of this backend; the error is the request's.
func (inst *instance) params(p infer.Params) (time.Duration, error) {
	if v, ok := p.Get("crash"); ok && v.Kind == infer.KindBool && v.Bool && inst.model.allowCrash {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) // it does not return
	}
	if v, ok := p.Get("fail"); ok {
		return 0, infer.Errorf(infer.Internal, "%s", v.Str)
	}
	v, ok := p.Get("delay_ms")
	if !ok {
		return 0, nil
	}
	ms := v.Double
	switch v.Kind {
	case infer.KindInt64, infer.KindUint64:
		ms = float64(v.Int)
	case infer.KindString:
		ms, _ = strconv.ParseFloat(v.Str, 64) // what is no number is no delay
	}
	if !(ms > 0) {
		return 0, nil
	}
	return time.Duration(min(ms, float64(maxDelay/time.Millisecond)) * float64(time.Millisecond)), nil
}

// differs says that two requests don't want the same outputs.
func (inst *instance) differs(a, b backend.Request) bool {
	if a == b {
		return false
	}
	for i := range inst.model.outputs {
		if name := inst.model.outputs[i].name; a.Wants(name) != b.Wants(name) {
			return true
		}
	}
	return false
}

// gather appends what r wants of the inputs under the outputs' names. An optional
// input that is absent gives no output.
func (inst *instance) gather(out, inputs []infer.Tensor, r backend.Request) []infer.Tensor {
	for i := range inst.model.outputs {
		o := &inst.model.outputs[i]
		if !r.Wants(o.name) {
			continue
		}
		for k := range inputs {
			if inputs[k].Name == o.input {
				t := inputs[k]
				t.Name = o.name
				out = append(out, t)
				break
			}
		}
	}
	return out
}

// answer answers request i with inst.out, or all for -1.
func (inst *instance) answer(b backend.Batch, i int) error { return inst.send(b, i, true) }

// send answers with inst.out: of several requests it is copied into the batch's memory, in one block.
func (inst *instance) send(b backend.Batch, i int, final bool) error {
	const align = 64
	if inst.onDevice {
		return inst.sendOnDevice(b, i, final)
	}
	if i < 0 && len(b.Requests()) == 1 {
		return inst.sendAlone(b)
	}
	var total int64
	for k := range inst.out {
		total += (int64(len(inst.out[k].Data)) + align - 1) &^ (align - 1)
	}
	mem, err := b.Alloc(total)
	if err != nil {
		return err
	}
	for k := range inst.out {
		n := copy(mem, inst.out[k].Data)
		inst.out[k].Data = mem[:n:n]
		mem = mem[(n+align-1)&^(align-1):]
	}
	if i < 0 {
		return b.Outputs(inst.out)
	}
	return b.Respond(i, inst.out, nil, final)
}

// sendAlone answers the one request of a batch: where its client wants the outputs, and with
// large inputs as they are.
func (inst *instance) sendAlone(b backend.Batch) error {
	for k := range inst.out {
		o := &inst.out[k]
		if b.Passes(o.Name, o.Data) {
			continue
		}
		mem, err := b.AllocOutput(o.Name, int64(len(o.Data)))
		if err != nil {
			return err
		}
		copy(mem, o.Data)
		o.Data = mem
	}
	return b.Outputs(inst.out)
}

func allCancelled(requests []backend.Request) bool {
	for _, r := range requests {
		if !r.Cancelled() {
			return false
		}
	}
	return true
}

// pause sleeps for d, or until stop says true; then it returns true. It blocks the
// instance's own thread, which keeps time far better than a timer of the runtime.
func pause(d time.Duration, stop func() bool) bool {
	for end := time.Now().Add(d); ; {
		if stop() {
			return true
		}
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		ts := unix.NsecToTimespec(int64(min(left, slice)))
		_ = unix.Nanosleep(&ts, nil) // a signal only makes it shorter
	}
}
