// Package calls does what models ask the gateway for: inferences of other models, which take
// the way of an ensemble's step; loading and unloading; whether a model is ready; log lines
// and figures.
//
// Who a call is for decides what it may do: the caller of the request that the model serves, or
// for a model that serves none the principal model:NAME. package workers/client knows which
// calls are open and ends them; here each is carried out on its own goroutine.
//
// Locks: those of the figures and of the lines are taken alone, and nothing runs under them.
package calls

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client"
)

// DefaultDepth is how deep models may call one another where nothing else is said.
const DefaultDepth = 16

// Config bounds calls. The zero value of a field is its default.
type Config struct {
	Depth int // how many models may be under way for one request, one inside the other; DefaultDepth
}

// Models is the model repository; gateway/repository fits it.
type Models interface {
	ModelReadyNow(ctx context.Context, name, version string) (bool, error)
	Unload(ctx context.Context, name string, dependents bool) error
}

// Steps is the way to other models.
type Steps interface {
	// Pin is that of schedule.Steps.
	Pin(ctx context.Context, model *schedule.StepModel) (schedule.Pinned, error)
	// Start runs a request as pipeline.StartStep does, and gives m back at the end.
	Start(ctx context.Context, m schedule.Pinned, req *infer.Request, to infer.Sink) (wait func())
}

// Deps are what calls stand on. Each func is called after the first model was loaded alone.
type Deps struct {
	Steps   func(namespace string) Steps // the way to models, as steps of one of that namespace
	Allowed func(env *infer.Envelope, model string) error
	Models  func() Models
	// Load loads a model; config is one in JSON, "": the folder's. files are those of repository.Override.
	Load func(ctx context.Context, model, config string, files map[string][]byte) error
	Log  *slog.Logger
}

// Calls fits client.Calls.
type Calls struct {
	cfg     Config
	deps    Deps
	lines   lines
	figures figures
}

var _ client.Calls = (*Calls)(nil)

// New makes Calls; it starts nothing.
func New(cfg Config, deps Deps) *Calls {
	if cfg.Depth == 0 {
		cfg.Depth = DefaultDepth
	}
	return &Calls{cfg: cfg, deps: deps, lines: newLines(deps.Log), figures: newFigures()}
}

// Infer fits client.Calls.
func (c *Calls) Infer(ctx context.Context, from *client.Calling, req *infer.Request, to infer.Sink) (wait func()) {
	steps := c.deps.Steps(from.Namespace)
	m, err := c.find(ctx, steps, from, req)
	if err != nil {
		req.Trace.Fail(err)
		infer.Flush(to.Done(err))
		return nil
	}
	return steps.Start(ctx, m, req, to)
}

// find decides on a call and pins its model.
func (c *Calls) find(
	ctx context.Context, steps Steps, from *client.Calling, req *infer.Request,
) (schedule.Pinned, error) {
	if req.Depth > c.cfg.Depth {
		return nil, infer.Refusef(infer.InvalidArg, infer.ReasonCallDepth,
			"model '%s' calls model '%s' more than %d deep", from.Model, req.Model,
			c.cfg.Depth)
	}
	if err := c.deps.Allowed(from.Call, req.Model); err != nil {
		return nil, err
	}
	step := schedule.StepModel{Name: req.Model, Version: -1}
	if req.Version != "" {
		n, err := strconv.ParseInt(req.Version, 10, 64)
		if err != nil || n < 0 {
			return nil, infer.Errorf(infer.InvalidArg,
				"model '%s' calls version '%s' of model '%s', which is no number", from.Model, req.Version, req.Model)
		}
		step.Version = n
	}
	return steps.Pin(ctx, &step)
}

// Do fits client.Calls.
func (c *Calls) Do(ctx context.Context, from *client.Calling, call *worker.Call) (*worker.CallAnswer, error) {
	answer := &worker.CallAnswer{}
	switch what := call.GetWhat().(type) {
	case *worker.Call_Load:
		if err := c.mayControl(from, what.Load.GetModel()); err != nil {
			return nil, err
		}
		return answer, c.deps.Load(infer.WithCaller(ctx, from.Call.Caller()), what.Load.GetModel(), what.Load.GetConfig(),
			what.Load.GetFiles())
	case *worker.Call_Unload:
		if err := c.mayControl(from, what.Unload.GetModel()); err != nil {
			return nil, err
		}
		return answer, c.deps.Models().Unload(infer.WithCaller(ctx, from.Call.Caller()), what.Unload.GetModel(),
			what.Unload.GetDependents())
	case *worker.Call_Ready:
		env := *from.Call
		env.Action = infer.ActionHealth
		if err := c.deps.Allowed(&env, what.Ready.GetModel()); err != nil {
			return nil, err
		}
		ready, err := c.deps.Models().ModelReadyNow(ctx, what.Ready.GetModel(), what.Ready.GetVersion())
		if err != nil && infer.CodeOf(err) != infer.NotFound && infer.ReasonOf(err) != infer.ReasonNotReady {
			return nil, err
		}
		answer.Ready = ready && err == nil
		return answer, nil
	case *worker.Call_Log:
		c.lines.write(ctx, from, what.Log)
		return answer, nil
	case *worker.Call_Metric:
		err := c.figures.update(ownerOf(from), what.Metric)
		if err != nil && call.GetId() == 0 { // nobody waits for it
			c.lines.write(ctx, from, &worker.LogLine{Level: worker.LogLine_WARNING, Text: err.Error()})
			err = nil
		}
		return answer, err
	}
	return nil, infer.Errorf(infer.Unsupported, "this gateway does not know what model '%s' asks for", from.Model)
}

// mayControl says whether the caller may load and unload a model.
func (c *Calls) mayControl(from *client.Calling, model string) error {
	env := *from.Call
	env.Action, env.Change = infer.ActionModelRepository, true
	return c.deps.Allowed(&env, model)
}

// Forget fits client.Calls.
func (c *Calls) Forget(from *client.Calling) {
	c.lines.forget(from)
	c.figures.forget(ownerOf(from))
}

// ownerOf names a model version on a worker.
func ownerOf(from *client.Calling) string {
	return fmt.Sprintf("%q %q %d %q", from.Namespace, from.Model, from.Version, from.Worker)
}
