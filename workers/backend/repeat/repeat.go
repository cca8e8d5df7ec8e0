package repeat

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
)

const (
	// maxPadding bounds the parameter padding.
	maxPadding = 1 << 20
	// openRequests is how many requests of an instance wait for their answers' times.
	openRequests = 1024
)

// New is a backend.Factory. There are no options.
func New(map[string]string) (backend.Backend, error) { return repeat{}, nil }

type repeat struct{}

// Info fits backend.Backend.
func (repeat) Info() backend.Info { return backend.Info{GPU: true, OpenRequests: openRequests} }

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
	set := func(name string) bool { return c.GetParameters()[name].GetStringValue() == "true" }
	return &model{allowCrash: set("allow_crash"), decoupled: c.GetModelTransactionPolicy().GetDecoupled(),
		releaseAll: set("release_inputs")}, nil
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

type model struct {
	allowCrash bool
	decoupled  bool
	releaseAll bool // what requests sent is gone while they wait
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return &instance{model: m}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return nil }

type instance struct {
	model *model
	open  sync.WaitGroup // answers of batches that are kept
}

// Close fits backend.Instance.
func (inst *instance) Close() error {
	inst.open.Wait()
	return nil
}

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Execute fits backend.Instance. Answers that come later come from a goroutine of their own.
func (inst *instance) Execute(b backend.Batch) error {
	r := b.Requests()[0] // without batch dimension there is one
	begin := time.Now()
	ask, err := inst.read(r)
	if err != nil {
		return err
	}
	b.InputDone()
	if !ask.waits() {
		a := answering{inst: inst, ask: ask, request: r, to: b}
		err := a.run(nil)
		b.InferDone()
		return err
	}
	open, err := b.Keep()
	if err != nil {
		return err
	}
	ask.own()
	if inst.model.releaseAll {
		open.ReleaseAll()
	} else {
		open.Release()
	}
	gone, done := make(chan struct{}), make(chan struct{})
	open.Watch(0, func(cause error) {
		if infer.ReasonOf(cause) != infer.ReasonDeadline { // which bounds the queue alone
			close(gone)
		}
	})
	inst.open.Go(func() {
		defer close(done)
		a := answering{inst: inst, ask: ask, request: open.Requests()[0], to: open, begin: begin}
		if err := a.run(gone); err != nil {
			_ = open.Fail(0, err) // its error is the worker's own, which it logs
		}
	})
	pause(ask.wait, done)
	return nil
}

// answers is what a batch and one that was kept have in common.
type answers interface {
	Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error
}

// answering is a request that is being answered.
type answering struct {
	inst    *instance
	ask     *asked
	request backend.Request
	to      answers
	begin   time.Time

	// Reused by every answer.
	out      []infer.Tensor
	value    [4]byte
	position [4]byte
}

// run gives all answers, until gone is closed.
func (a *answering) run(gone <-chan struct{}) error {
	n := len(a.ask.values) / 4
	for i := range n {
		if err := a.before(gone, i); err != nil {
			return err
		}
		last := a.ask.final && i == n-1 || !a.inst.model.decoupled
		if err := a.answer(i, last); err != nil || last {
			return err
		}
	}
	if err := a.limits(n); err != nil {
		return err
	}
	if !a.inst.model.decoupled {
		return infer.Errorf(infer.InvalidArg,
			"input 'IN' has no element, and a model without a decoupled transaction policy gives one answer")
	}
	if pause(a.ask.wait-time.Since(a.begin), gone) {
		return cancelled()
	}
	return a.to.Respond(0, nil, nil, true)
}

// before waits for the time of answer i.
func (a *answering) before(gone <-chan struct{}, i int) error {
	if err := a.limits(i); err != nil {
		return err
	}
	if a.request.Cancelled() {
		return cancelled()
	}
	if delay := a.ask.delay(i); delay > 0 && pause(delay, gone) {
		return cancelled()
	}
	return nil
}

// limits ends what the request wants to end after so many answers.
func (a *answering) limits(answered int) error {
	if a.ask.crashAfter == int64(answered) && a.inst.model.allowCrash {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) // it does not return
	}
	if a.ask.failAfter == int64(answered) {
		return infer.Errorf(infer.Internal, "the request failed after %d answers, as it asked to", answered)
	}
	return nil
}

// answer sends answer i.
func (a *answering) answer(i int, final bool) error {
	copy(a.value[:], a.ask.values[4*i:4*i+4])
	binary.LittleEndian.PutUint32(a.position[:], uint32(i))
	a.out = a.out[:0]
	if a.request.Wants("OUT") {
		a.out = append(a.out, infer.Tensor{Name: "OUT", Datatype: infer.Int32, Shape: []int64{1}, Data: a.value[:]})
	}
	if a.request.Wants("IDX") {
		a.out = append(a.out, infer.Tensor{Name: "IDX", Datatype: infer.Uint32, Shape: []int64{1}, Data: a.position[:]})
	}
	return a.to.Respond(0, a.out, a.ask.params, final)
}

// asked is what a request asks for.
type asked struct {
	values, delays        []byte
	wait                  time.Duration
	failAfter, crashAfter int64 // -1: never
	final                 bool
	params                infer.Params // of each answer
}

// delay is the time before answer i.
func (a *asked) delay(i int) time.Duration {
	return time.Duration(binary.LittleEndian.Uint32(a.delays[4*i:])) * time.Millisecond
}

// waits says that an answer comes later.
func (a *asked) waits() bool {
	return a.wait > 0 || slices.ContainsFunc(a.delays, func(b byte) bool { return b != 0 })
}

// own makes the inputs the request's own.
func (a *asked) own() { a.values, a.delays = slices.Clone(a.values), slices.Clone(a.delays) }

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

// pause sleeps for d; true: gone was closed meanwhile.
func pause(d time.Duration, gone <-chan struct{}) bool {
	if d <= 0 {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-gone:
		return true
	}
}
