package square

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
)

// openRequests is how many requests of an instance are answered at a time.
const openRequests = 1024

// New is a backend.Factory. There are no options.
func New(map[string]string) (backend.Backend, error) { return square{}, nil }

type square struct{}

// Info fits backend.Backend.
func (square) Info() backend.Info { return backend.Info{GPU: true, OpenRequests: openRequests} }

// Close fits backend.Backend.
func (square) Close() error { return nil }

// Describe is Unsupported: there is no file that would tell.
func (square) Describe(context.Context, backend.Spec) (*backend.Description, error) {
	return nil, infer.Errorf(infer.Unsupported, "the square backend has no model file that declares tensors")
}

// Load checks the config. The model file need not exist.
func (square) Load(_ context.Context, spec backend.Spec) (backend.Model, error) {
	c := spec.Config
	if len(c.GetInput()) != 1 || len(c.GetOutput()) != 1 {
		return nil, infer.Errorf(infer.InvalidArg,
			"the square backend wants 1 input and 1 output, the model config has %d and %d",
			len(c.GetInput()), len(c.GetOutput()))
	}
	in, out := c.GetInput()[0], c.GetOutput()[0]
	if err := check("IN", in.GetName(), in.GetDataType(), in.GetDims()); err != nil {
		return nil, err
	}
	if err := check("OUT", out.GetName(), out.GetDataType(), out.GetDims()); err != nil {
		return nil, err
	}
	m := &model{decoupled: c.GetModelTransactionPolicy().GetDecoupled()}
	m.inferDelay = time.Duration(number(c, "CUSTOM_INFER_DELAY_NS"))
	m.outputDelay = time.Duration(number(c, "CUSTOM_OUTPUT_DELAY_NS"))
	m.cancelDelay = time.Duration(number(c, "CUSTOM_CANCEL_DELAY_NS"))
	m.fail, m.empty = number(c, "CUSTOM_FAIL_COUNT"), number(c, "CUSTOM_EMPTY_COUNT")
	return m, nil
}

func check(want, name string, dt modelconfig.DataType, dims []int64) error {
	if name != want || dt != modelconfig.DataType_TYPE_INT32 || !slices.Equal(dims, []int64{1}) {
		return infer.Errorf(infer.InvalidArg,
			"the square backend wants a tensor '%s' of TYPE_INT32 [1], the model config has '%s' of %v %v", want,
			name, dt, dims)
	}
	return nil
}

// number is a parameter of the config; 0 where it is none, or too large.
// Source: ModelParameters of Triton's square backend.
func number(c *modelconfig.ModelConfig, name string) int64 {
	n, err := strconv.ParseUint(c.GetParameters()[name].GetStringValue(), 10, 31)
	if err != nil {
		return 0
	}
	return int64(n)
}

type model struct {
	decoupled                            bool
	inferDelay, outputDelay, cancelDelay time.Duration
	fail, empty                          int64
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return &instance{model: m}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return nil }

type instance struct {
	model *model
	open  sync.WaitGroup // requests that are being answered
}

// Close fits backend.Instance.
func (inst *instance) Close() error {
	inst.open.Wait()
	return nil
}

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Execute fits backend.Instance.
func (inst *instance) Execute(b backend.Batch) error {
	b.InputDone()
	open, err := b.Keep()
	if err != nil {
		return err
	}
	all := make([]answering, len(open.Requests()))
	for i, r := range open.Requests() {
		if all[i], err = inst.read(r); err != nil {
			_ = open.Fail(i, err) // its error is the worker's own, which it logs
		}
	}
	open.Release()
	for i := range all {
		a := &all[i]
		if a.gone == nil {
			continue // it has failed
		}
		a.open, a.index = open, i
		open.Watch(i, func(cause error) {
			if infer.ReasonOf(cause) != infer.ReasonDeadline { // which bounds the queue alone
				close(a.gone)
			}
		})
		inst.open.Go(func() {
			if err := a.run(); err != nil {
				_ = open.Fail(i, err)
			}
		})
	}
	return nil
}

// answering is a request that is being answered.
type answering struct {
	model *model
	open  backend.Open
	index int
	n     int64
	rank  int           // of IN and OUT
	gone  chan struct{} // closed when nobody waits for it
}

func (inst *instance) read(r backend.Request) (a answering, err error) {
	in := r.Inputs()
	if len(in) != 1 || len(in[0].Data) != 4 {
		return a, infer.Errorf(infer.InvalidArg, "unexpected shape for IN input")
	}
	n := int64(int32(binary.LittleEndian.Uint32(in[0].Data)))
	switch {
	case n < 0:
		return a, infer.Errorf(infer.InvalidArg, "input 'IN' is %d, and no request has fewer than 0 answers", n)
	case n == 0 && !inst.model.decoupled:
		return a, infer.Errorf(infer.InvalidArg,
			"input 'IN' is 0, and a model without a decoupled transaction policy gives one answer")
	}
	return answering{model: inst.model, n: n, rank: len(in[0].Shape), gone: make(chan struct{})}, nil
}

// run gives all answers. Its error is the request's.
func (a *answering) run() error {
	m := a.model
	out := make([]byte, 4)
	binary.LittleEndian.PutUint32(out, uint32(a.n))
	outputs := []infer.Tensor{{Name: "OUT", Datatype: infer.Int32, Shape: slices.Repeat([]int64{1}, a.rank), Data: out}}
	for i := range a.n {
		empty := i+m.empty >= a.n
		gone := pause(m.inferDelay, a.gone)
		a.open.InferDone(a.index)
		if !empty && !gone {
			gone = pause(m.outputDelay, a.gone)
		}
		if gone {
			pause(m.cancelDelay, nil)
			return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")
		}
		switch {
		case empty:
			continue
		case i+m.empty+m.fail >= a.n:
			failure := infer.Errorf(infer.Unknown, "simulated failure")
			if !m.decoupled {
				return failure
			}
			if open, err := a.open.RespondError(a.index, failure); err != nil || !open {
				return err
			}
			continue
		}
		if err := a.open.Respond(a.index, outputs, nil, !m.decoupled); err != nil || !m.decoupled {
			return err
		}
	}
	if !m.decoupled {
		return infer.Errorf(infer.Unknown,
			"all of the %d answers are empty, and a model without a decoupled transaction policy gives one", a.n)
	}
	return a.open.Respond(a.index, nil, nil, true)
}

// pause sleeps for d, and says whether gone was closed until then.
func pause(d time.Duration, gone <-chan struct{}) bool {
	if d <= 0 {
		select {
		case <-gone:
			return true
		default:
			return false
		}
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
