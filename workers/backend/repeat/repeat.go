package repeat

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
)

const (
	// slice is how long a delay sleeps before it looks for cancellation again.
	slice = time.Millisecond
	// maxPadding bounds the parameter padding.
	maxPadding = 1 << 20
)

// New is a backend.Factory. There are no options.
func New(map[string]string) (backend.Backend, error) { return repeat{}, nil }

type repeat struct{}

// Info fits backend.Backend.
func (repeat) Info() backend.Info { return backend.Info{GPU: true} }

// Close fits backend.Backend.
func (repeat) Close() error { return nil }

// Describe is Unsupported: there is no file that would tell.
func (repeat) Describe(context.Context, backend.Spec) (*backend.Description, error) {
	return nil, infer.Errorf(infer.Unsupported, "the repeat backend has no model file that declares tensors")
}

// tensor is what the config must say of one.
type tensor struct {
	name     string
	datatype modelconfig.DataType
	one      bool // its shape is [1]
}

var (
	inputs  = [...]tensor{{name: "IN", datatype: modelconfig.DataType_TYPE_INT32}, {name: "DELAY", datatype: modelconfig.DataType_TYPE_UINT32}, {"WAIT", modelconfig.DataType_TYPE_UINT32, true}}
	outputs = [...]tensor{{"OUT", modelconfig.DataType_TYPE_INT32, true}, {"IDX", modelconfig.DataType_TYPE_UINT32, true}}
)

// Load checks the config. The model file need not exist.
func (repeat) Load(_ context.Context, spec backend.Spec) (backend.Model, error) {
	c := spec.Config
	if c.GetMaxBatchSize() != 0 {
		return nil, infer.Errorf(infer.InvalidArg, "the repeat backend serves models without batch dimension alone, max_batch_size is %d", c.GetMaxBatchSize())
	}
	if !c.GetModelTransactionPolicy().GetDecoupled() {
		return nil, infer.Errorf(infer.InvalidArg, "the repeat backend serves models with a decoupled transaction policy alone")
	}
	if len(c.GetInput()) != len(inputs) || len(c.GetOutput()) != len(outputs) {
		return nil, infer.Errorf(infer.InvalidArg, "the repeat backend wants %d inputs and %d outputs, the model config has %d and %d",
			len(inputs), len(outputs), len(c.GetInput()), len(c.GetOutput()))
	}
	for _, want := range inputs {
		i := slices.IndexFunc(c.GetInput(), func(in *modelconfig.ModelInput) bool { return in.GetName() == want.name })
		if i < 0 {
			return nil, missing(want)
		}
		if err := want.check(c.GetInput()[i].GetDataType(), c.GetInput()[i].GetDims()); err != nil {
			return nil, err
		}
	}
	for _, want := range outputs {
		i := slices.IndexFunc(c.GetOutput(), func(out *modelconfig.ModelOutput) bool { return out.GetName() == want.name })
		if i < 0 {
			return nil, missing(want)
		}
		if err := want.check(c.GetOutput()[i].GetDataType(), c.GetOutput()[i].GetDims()); err != nil {
			return nil, err
		}
	}
	return &model{allowCrash: c.GetParameters()["allow_crash"].GetStringValue() == "true"}, nil
}

func missing(t tensor) error {
	return infer.Errorf(infer.InvalidArg, "the repeat backend wants a tensor '%s', the model config has none", t.name)
}

func (t tensor) check(dt modelconfig.DataType, dims []int64) error {
	if dt != t.datatype {
		return infer.Errorf(infer.InvalidArg, "the repeat backend wants '%s' to be %v, the model config says %v", t.name, t.datatype, dt)
	}
	if len(dims) != 1 || t.one && dims[0] != 1 {
		return infer.Errorf(infer.InvalidArg, "the repeat backend wants '%s' to have one dimension, and OUT, IDX and WAIT one element, the model config says %v",
			t.name, dims)
	}
	return nil
}

type model struct{ allowCrash bool }

// NewInstance fits backend.Model.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return &instance{model: m}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return nil }

type instance struct {
	model *model

	// Reused by every answer.
	out      []infer.Tensor
	value    [4]byte
	position [4]byte
}

// Close fits backend.Instance.
func (inst *instance) Close() error { return nil }

// Execute fits backend.Instance.
func (inst *instance) Execute(b backend.Batch) error {
	r := b.Requests()[0] // without batch dimension there is one
	begin := time.Now()
	ask, err := inst.read(r)
	if err != nil {
		return err
	}
	b.InputDone()
	n := len(ask.values) / 4
	for i := range n {
		if err := inst.before(ask, r, i); err != nil {
			return err
		}
		if err := inst.answer(b, ask, i, ask.final && i == n-1); err != nil {
			return err
		}
	}
	if err := inst.limits(ask, n); err != nil {
		return err
	}
	if pause(ask.wait-time.Since(begin), r) {
		return cancelled()
	}
	b.InferDone()
	if ask.final && n > 0 {
		return nil
	}
	return b.Respond(0, nil, nil, true)
}

// before waits for the time of answer i.
func (inst *instance) before(ask *asked, r backend.Request, i int) error {
	if err := inst.limits(ask, i); err != nil {
		return err
	}
	delay := time.Duration(binary.LittleEndian.Uint32(ask.delays[4*i:])) * time.Millisecond
	if pause(delay, r) {
		return cancelled()
	}
	return nil
}

// limits ends what the request wants to end after so many answers.
func (inst *instance) limits(ask *asked, answered int) error {
	if ask.crashAfter == int64(answered) && inst.model.allowCrash {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) // it does not return
	}
	if ask.failAfter == int64(answered) {
		return infer.Errorf(infer.Internal, "the request failed after %d answers, as it asked to", answered)
	}
	return nil
}

// answer sends answer i.
func (inst *instance) answer(b backend.Batch, ask *asked, i int, final bool) error {
	r := b.Requests()[0]
	copy(inst.value[:], ask.values[4*i:4*i+4])
	binary.LittleEndian.PutUint32(inst.position[:], uint32(i))
	inst.out = inst.out[:0]
	if r.Wants("OUT") {
		inst.out = append(inst.out, infer.Tensor{Name: "OUT", Datatype: infer.Int32, Shape: []int64{1}, Data: inst.value[:]})
	}
	if r.Wants("IDX") {
		inst.out = append(inst.out, infer.Tensor{Name: "IDX", Datatype: infer.Uint32, Shape: []int64{1}, Data: inst.position[:]})
	}
	return b.Respond(0, inst.out, ask.params, final)
}

// asked is what a request asks for.
type asked struct {
	values, delays        []byte
	wait                  time.Duration
	failAfter, crashAfter int64 // -1: never
	final                 bool
	params                infer.Params // of each answer
}

func (inst *instance) read(r backend.Request) (*asked, error) {
	a := &asked{failAfter: -1, crashAfter: -1}
	for _, in := range r.Inputs() {
		switch in.Name {
		case "IN":
			a.values = in.Data
		case "DELAY":
			a.delays = in.Data
		case "WAIT":
			if len(in.Data) == 4 {
				a.wait = time.Duration(binary.LittleEndian.Uint32(in.Data)) * time.Millisecond
			}
		}
	}
	if len(a.values) != len(a.delays) {
		return nil, infer.Errorf(infer.InvalidArg, "expected IN and DELAY shape to match, got [%d] and [%d]", len(a.values)/4, len(a.delays)/4)
	}
	echo, _ := r.Params().Get("echo")
	for _, p := range r.Params() {
		switch p.Name {
		case "fail_after":
			a.failAfter = p.Value.Int
		case "crash_after":
			a.crashAfter = p.Value.Int
		case "final":
			a.final = p.Value.Bool
		case "padding":
			n := min(max(p.Value.Int, 0), maxPadding)
			a.params = append(a.params, infer.Param{Name: "padding", Value: infer.Value{Kind: infer.KindString, Str: strings.Repeat("x", int(n))}})
		case "echo":
		default:
			if echo.Bool {
				a.params = append(a.params, p)
			}
		}
	}
	return a, nil
}

func cancelled() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")
}

// pause sleeps for d, or until the request is cancelled; then it returns true. It blocks
// the instance's own thread.
func pause(d time.Duration, r backend.Request) bool {
	for end := time.Now().Add(d); ; {
		if r.Cancelled() {
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
