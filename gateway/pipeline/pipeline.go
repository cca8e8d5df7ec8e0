// Package pipeline is the order of a request's steps, and nothing else: what a step
// does lives in the package it calls. A front end calls Open with the headers, decodes
// the body, and calls Infer, or Start where it has no goroutine that could wait.
//
// A Pipeline has no state of its own and no goroutine. With Infer a request stays on the
// goroutine of its front end from the first byte to the last. With Start its answer is
// made by whoever brings it, so what runs from then on must not block: presenting,
// statistics, the end of traces, Close. Everything a request waits for ends when its
// context does.
package pipeline

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/gateway/classification"
	"github.com/sluice-serve/sluice/gateway/timing"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// Model is one model version, pinned; gateway/repository fits it. Its Runner's Current is nil
// where no answers are kept.
type Model interface {
	cache.Runner
	// Start is schedule.Starter's.
	Start(ctx context.Context, req *infer.Request, to infer.Sink) bool
	// VersionText is the version's number.
	VersionText() string
	// Validate checks the request against the model and sets its Rows.
	Validate(req *infer.Request) error
	// Places says that instances take the request's tensors in clients' memory where they
	// lie; CheckBytes looks at BYTES inputs that were read since Validate.
	Places(req *infer.Request) bool
	CheckBytes(req *infer.Request) error
	// Decoupled says that one request may have any number of responses.
	Decoupled() bool
	// Batched says that the first dimension of every tensor is the batch.
	Batched() bool
	// Labels are an output's class labels, or nil.
	Labels(output string) []string
	// Present turns a response's tensors from the backend's view into the client's.
	Present(resp *infer.Response)
	// Fit is the shape in which an ensemble gives a tensor to an input; see
	// schedule.Pinned.
	Fit(input string, batched bool, shape []int64) []int64
	// Done records a request that has ended.
	Done(req *infer.Request, err error)
	Release()
}

// Models finds models; gateway/repository fits it.
type Models interface {
	// Acquire pins a version: it stays loaded until Release. NotFound, InvalidArg (a
	// version that is no number) or Unavailable (not ready).
	Acquire(ctx context.Context, name, version string) (Model, error)
	// Look says whether the version that Acquire would pin is decoupled, for less than it
	// takes to pin it. Errors are Acquire's.
	Look(name, version string) (decoupled bool, err error)
}

// Config is a Pipeline in values.
type Config struct {
	Timings Timings
	// ClassBytes bounds the classes of one response; 0: classification.DefaultMaxBytes.
	ClassBytes int64
}

// Deps are the collaborators of a Pipeline. Only Models is required.
type Deps struct {
	Models    Models
	Guard     Guard           // before everything; nil: everybody may do everything
	Admission Admission       // behind the guard; nil: no limits
	Tracer    *tracing.Tracer // decides which requests are traced; nil: none is
	Cache     *cache.Step     // before the queues of models whose answers are kept; nil: none
	Regions   infer.Regions   // reads and writes tensors in clients' memory; nil: there is none
	Responses *infer.Budget   // counts classes; nil: they are not counted
	// Ended sees the end of every call, refused ones too, on the goroutine that answers it,
	// which may be one that reads results for many calls: it must not block. What it is
	// given is valid until it returns. nil: nobody asks.
	Ended func(env *infer.Envelope, end *infer.End)
}

// Pipeline carries requests to their responses.
type Pipeline struct {
	cfg      Config
	deps     Deps
	patient  bool // Admission may wait
	stopping atomic.Bool
	flight   flight
	walks    sync.Pool // of *walk
}

// New makes a pipeline.
func New(c Config, d Deps) *Pipeline {
	if d.Models == nil {
		panic("pipeline: Deps.Models is nil")
	}
	if c.ClassBytes == 0 {
		c.ClassBytes = classification.DefaultMaxBytes
	}
	return &Pipeline{cfg: c, deps: d, patient: d.Admission != nil && d.Admission.Waits()}
}

// Stop makes Open refuse every further inference: the gateway drains.
func (p *Pipeline) Stop() { p.stopping.Store(true) }

// Open decides on headers alone whether a call may go on: identity and rights, whether
// the server takes calls, limits of the caller, and whether the model is there. The body
// is not read yet. The context it returns is for the rest of the call. Whatever Open
// returned, Close is called once when the call has ended; also for a call that never
// got to Open.
func (p *Pipeline) Open(ctx context.Context, env *infer.Envelope) (context.Context, error) {
	p.begin(env)
	retarget(env)
	if p.deps.Tracer.On() {
		p.deps.Tracer.Open(env)
	}
	err := p.identify(ctx, env)
	if err == nil {
		err = p.admit(ctx, env)
	}
	if env.Trace != nil {
		p.deps.Tracer.Admitted(env, err)
	}
	if err != nil {
		return nil, err
	}
	if env.Change && env.Action == infer.ActionModelRepository {
		ctx = infer.WithCaller(ctx, env.Caller()) // loads are shared fairly
	}
	return ctx, nil
}

// identify is what Open asks first, and what never waits: who calls, what they may do,
// and whether the server takes calls.
func (p *Pipeline) identify(ctx context.Context, env *infer.Envelope) error {
	if p.deps.Guard != nil {
		if err := p.deps.Guard.Open(ctx, env); err != nil {
			return err
		}
	}
	if env.Action == infer.ActionInference && p.stopping.Load() {
		return errStopping()
	}
	return nil
}

// admit is the rest of what Open asks.
func (p *Pipeline) admit(ctx context.Context, env *infer.Envelope) error {
	if p.deps.Admission != nil {
		if err := p.deps.Admission.Open(ctx, env); err != nil {
			return err
		}
	}
	if env.Action == infer.ActionInference && env.Model != "" {
		// a body for what can't be served is not worth reading
		decoupled, err := p.deps.Models.Look(env.Model, env.Version)
		if err != nil {
			return err
		}
		if decoupled && !env.Streaming {
			return infer.ErrDecoupled
		}
	}
	return nil
}

// Close ends a call: limits get back what it held, and who wants to know is told.
func (p *Pipeline) Close(env *infer.Envelope, end *infer.End) {
	p.finish(env)
	if p.deps.Admission != nil {
		p.deps.Admission.Close(env, end)
	}
	if p.deps.Ended != nil {
		p.deps.Ended(env, end)
	}
	if env.Trace != nil {
		p.deps.Tracer.Close(env, end)
	}
}

// Infer carries one decoded request to its responses. The order of the steps is this
// file's contract. send is called on this goroutine, once, or for decoupled models any
// number of times; what it is given it owns. An error is infer's; responses that were
// sent before it stay sent.
func (p *Pipeline) Infer(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	m, err := p.enter(ctx, req)
	if err != nil {
		return err
	}
	defer m.Release()
	return p.carry(ctx, m, req, send)
}

// carry is what follows once the model is pinned, to the end. A panic of ours ends the one
// request, which is recorded as any other.
func (p *Pipeline) carry(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	err := guarded(func() error {
		if err := p.checked(ctx, m, req); err != nil {
			return err
		}
		return p.execute(ctx, m, req, p.presented(ctx, m, req, send))
	})
	p.leave(m, req, err)
	return err
}

// enter is the first step of a request: rights, and its model, pinned until Release.
func (p *Pipeline) enter(ctx context.Context, req *infer.Request) (Model, error) {
	if req.Times.RequestStart == 0 {
		req.Times.RequestStart = infer.Now()
	}
	aim(req)
	if err := p.known(req); err != nil {
		return nil, err
	}
	m, err := p.deps.Models.Acquire(ctx, req.Model, req.Version)
	if err != nil {
		if req.Trace != nil {
			untraced(req, err)
		}
		return nil, err
	}
	req.Served = m.VersionText()
	req.Decoupled = m.Decoupled()
	if p.deps.Tracer.On() || req.Trace != nil {
		p.traced(m, req)
	}
	return m, nil
}

// leave is the last step of a request that entered: it is recorded at its model.
func (p *Pipeline) leave(m Model, req *infer.Request, err error) {
	req.Times.RequestEnd = infer.Now()
	m.Done(req, err)
	if req.Trace != nil {
		untraced(req, err)
	}
}

// Refused records at the model a request that a front end opened and then refused
// itself: no memory for its body, too large, malformed, gone before it had arrived.
// Without it no metric of the model would show them. A request whose model is not
// known, or not ready, is counted by the front end alone.
func (p *Pipeline) Refused(ctx context.Context, req *infer.Request, err error) {
	if req.Model == "" {
		return
	}
	m, missing := p.deps.Models.Acquire(ctx, req.Model, req.Version)
	if missing != nil {
		return
	}
	defer m.Release()
	if p.deps.Tracer.On() {
		// it never gets to its model: the trace has what the front end marks
		if req.Trace = p.deps.Tracer.Begin(req); req.Trace != nil {
			defer untraced(req, err)
		}
	}
	req.Times.RequestEnd = infer.Now()
	if req.Times.RequestStart == 0 {
		req.Times.RequestStart = req.Times.RequestEnd
	}
	m.Done(req, err)
}

// checked is what follows once the model is pinned, until the request may be executed.
func (p *Pipeline) checked(ctx context.Context, m Model, req *infer.Request) error {
	if m.Decoupled() && !req.Streaming {
		return infer.ErrDecoupled
	}
	if err := p.wishes(req); err != nil {
		return err
	}
	if err := m.Validate(req); err != nil {
		return err
	}
	if p.deps.Admission != nil && req.Envelope != nil {
		if err := p.deps.Admission.Request(ctx, req); err != nil {
			return err
		}
	}
	if req.Trace != nil {
		req.Trace.Queued = infer.Now()
		req.Trace.Tensor(infer.TraceQueueInput, req.Inputs)
	}
	return nil
}

// presented is send with the client's view of each response.
func (p *Pipeline) presented(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) infer.SendFunc {
	return func(resp *infer.Response) error {
		if err := p.present(ctx, m, req, resp); err != nil {
			return err
		}
		return send(resp)
	}
}

// present makes the client's view of a response: the shapes of the model configuration,
// and classes in place of tensors where it asked for classes. After an error nothing of
// the response is held any more.
func (p *Pipeline) present(ctx context.Context, m Model, req *infer.Request, resp *infer.Response) error {
	req.Times.Cache = resp.Cache
	if t := req.Trace; t != nil {
		at := infer.Now()
		m.Present(resp)
		responded(t, resp, at)
	} else {
		m.Present(resp)
	}
	if err := p.classify(ctx, m, req, resp); err != nil {
		resp.Memory.Release()
		return err
	}
	if req.Timings {
		resp.Params = timing.Params(resp.Params, req)
	}
	return nil
}
