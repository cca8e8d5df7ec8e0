// Package compose is a backend for tests whose models call others: what a request asks for by
// its parameters, with its inputs.
//
//   - call: the model that is called; its outputs are the answer, and an error of it the error.
//   - version, stream, times (how often, one call after the other), at_once (how many at a time; the first
//     that fails ends the others, and its error is the model's).
//   - panic: the model panics at the first answer.
//   - enough: after so many answers of a stream the rest is cancelled.
//   - alone: the model calls for itself, and not for the request.
//   - do: load, unload, ready or log in place of an inference, with call as the model or the text;
//     metric adds 1 to the counter of that name, labelled with the version.
//   - late: the call is kept, and made for this request when another one, of told, is executed,
//     whose error is what came of it.
package compose

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// New is a backend.Factory.
func New(map[string]string) (backend.Backend, error) { return compose{}, nil }

type compose struct{}

// Info fits backend.Backend.
func (compose) Info() backend.Info { return backend.Info{} }

// Close fits backend.Backend.
func (compose) Close() error { return nil }

// Describe is Unsupported: there is no file.
func (compose) Describe(context.Context, backend.Spec) (*backend.Description, error) {
	return nil, infer.Errorf(infer.Unsupported, "the compose backend has no model file")
}

// Load fits backend.Backend.
func (compose) Load(ctx context.Context, spec backend.Spec) (backend.Model, error) {
	if spec.Gateway == nil {
		return nil, infer.Errorf(infer.Unavailable, "the gateway takes no calls")
	}
	return &model{ctx: context.WithoutCancel(ctx), spec: spec}, nil
}

type model struct {
	ctx  context.Context // ends with nothing but the model
	spec backend.Spec

	mu   sync.Mutex
	late func() error // guarded by mu: the call that was kept; nil: none
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return &instance{m}, nil
}

// Close fits backend.Model.
func (m *model) Close() error { return nil }

type instance struct{ *model }

// Close fits backend.Instance.
func (*instance) Close() error { return nil }

// Fault fits backend.Instance: it can always execute.
func (*instance) Fault() error { return nil }

// Execute fits backend.Instance.
func (i *instance) Execute(b backend.Batch) error {
	for k, r := range b.Requests() {
		if err := i.request(b, k, r); err != nil {
			if err := b.Fail(k, err); err != nil {
				return err
			}
		}
	}
	return nil
}

func text(r backend.Request, name string) string {
	v, _ := r.Params().Get(name)
	return v.Str
}

func number(r backend.Request, name string) int {
	v, _ := r.Params().Get(name)
	return int(v.Int)
}

func flag(r backend.Request, name string) bool {
	v, _ := r.Params().Get(name)
	return v.Bool
}

// request answers request k.
func (i *instance) request(b backend.Batch, k int, r backend.Request) error {
	g := r.Gateway()
	if flag(r, "alone") {
		g = i.spec.Gateway
	}
	ctx := i.ctx
	switch {
	case flag(r, "told"):
		i.mu.Lock()
		defer i.mu.Unlock()
		return infer.Errorf(infer.Internal, "%v", i.late())
	case text(r, "do") != "":
		return i.do(ctx, g, b, k, r)
	case flag(r, "late"):
		call := callOf(r)
		for n := range call.Inputs {
			call.Inputs[n].Data = append([]byte(nil), call.Inputs[n].Data...)
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.late = func() error { return g.Infer(ctx, call, func(*backend.Answer) error { return nil }) }
		return b.Respond(k, []infer.Tensor{floats(0)}, nil, true)
	}
	return i.calls(ctx, g, b, k, r)
}

func callOf(r backend.Request) *backend.Call {
	return &backend.Call{Model: text(r, "call"), Version: text(r, "version"),
		Inputs: append([]infer.Tensor(nil), r.Inputs()...), Params: r.Params(),
		Stream: flag(r, "stream")}
}

var errEnough = errors.New("enough")

// calls answers with the outputs of the last call, or for a stream with how many answers there
// were.
func (i *instance) calls(ctx context.Context, g backend.Gateway, b backend.Batch, k int, r backend.Request) error {
	call := callOf(r)
	answers := 0
	each := func(a *backend.Answer) error {
		if flag(r, "panic") {
			panic("an answer came")
		}
		if len(a.Outputs) > 0 {
			answers++
		}
		if enough := number(r, "enough"); enough > 0 && answers == enough {
			return errEnough
		}
		if a.Final && !call.Stream {
			return b.Respond(k, a.Outputs, a.Params, true)
		}
		return nil
	}
	drop := func(*backend.Answer) error { return nil }
	for range number(r, "times") - 1 {
		if err := g.Infer(ctx, call, drop); err != nil {
			return err
		}
	}
	if n := number(r, "at_once") - 1; n > 0 {
		both, end := context.WithCancelCause(ctx)
		defer end(nil)
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if err := g.Infer(both, call, drop); err != nil {
					end(err)
				}
			})
		}
		wg.Wait()
		if err := context.Cause(both); err != nil {
			return err
		}
	}
	if err := g.Infer(ctx, call, each); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if call.Stream {
		return b.Respond(k, []infer.Tensor{floats(float32(answers))}, nil, true)
	}
	return nil
}

// do answers with 1 where what was asked for is so, or was done.
func (i *instance) do(ctx context.Context, g backend.Gateway, b backend.Batch, k int, r backend.Request) error {
	what, err, ok := text(r, "call"), error(nil), true
	switch do := text(r, "do"); do {
	case "load":
		err = g.Load(ctx, what, text(r, "config"), nil)
	case "unload":
		err = g.Unload(ctx, what, false)
	case "ready":
		ok, err = g.Ready(ctx, what, text(r, "version"))
	case "log":
		for range max(number(r, "times"), 1) {
			g.Log(backend.LogWarning, what)
		}
	case "metric":
		err = g.Metric(ctx, &backend.Metric{Family: what, Kind: backend.Counter, Help: "of a test",
			Labels: map[string]string{"kind": text(r, "version")},
			Change: backend.Add, Value: 1})
	default:
		err = infer.Errorf(infer.InvalidArg, "nothing is called '%s'", do)
	}
	if err != nil {
		return err
	}
	if ok {
		return b.Respond(k, []infer.Tensor{floats(1)}, nil, true)
	}
	return b.Respond(k, []infer.Tensor{floats(0)}, nil, true)
}

func floats(v float32) infer.Tensor {
	return infer.Tensor{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{1, 1},
		Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))}
}
