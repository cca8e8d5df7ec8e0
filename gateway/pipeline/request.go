package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/gateway/timing"
	"github.com/sluice-serve/sluice/infer"
)

// Start carries one decoded request to its responses: to has each of them, and the end,
// maybe before Start returns. The order of the steps is this file's contract. Where
// somebody must wait for the rest — a model whose answers keep an order or come in any
// number, an ensemble, a response that is in no local cache, or is and takes long to send,
// limits that are asked for over a network — wait is not nil, and the caller calls it once,
// on a goroutine that may block; to's Done then comes before it returns.
func (p *Pipeline) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	w := p.walk(ctx, req, to)
	if p.patient || !w.start() {
		return w.wait
	}
	return nil
}

// Infer is Start for a caller who waits: to is called on this goroutine, and its Done
// before Infer returns.
func (p *Pipeline) Infer(ctx context.Context, req *infer.Request, to infer.Sink) {
	p.walk(ctx, req, to).run()
}

// Step carries a request that is a step of an ensemble: the same order of steps for a
// model that the ensemble has pinned, with its own statistics, and its own trace where the
// ensemble's request has one. send is called on this goroutine, once, or for decoupled
// models any number of times. What the front ends are asked for once, identity and
// admission, is not asked again.
func (p *Pipeline) Step(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	req.Times.RequestStart = infer.Now()
	if req.Trace != nil {
		p.traced(m, req)
	}
	w := p.walk(ctx, req, nil)
	w.m, w.answer = m, send
	err := w.carry()
	w.leave(err)
	return err
}

// StartStep is Start for a request that a model has called for, as Step is Infer: m is pinned,
// and is given back at the end.
func (p *Pipeline) StartStep(ctx context.Context, m Model, req *infer.Request, to infer.Sink) (wait func()) {
	req.Times.RequestStart = infer.Now()
	if req.Trace != nil {
		p.traced(m, req)
	}
	w := p.walk(ctx, req, to)
	w.m = m
	if !w.start() {
		return w.wait
	}
	return nil
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
		req.Trace = p.deps.Tracer.Begin(req)
	}
	if req.Times.RequestStart == 0 {
		req.Times.RequestStart = infer.Now()
	}
	record(m, req, err)
}

// walk is a request on its way: the sink of its model, before the sink of its caller. It is
// pooled; leave is its last step.
type walk struct {
	p      *Pipeline
	ctx    context.Context
	req    *infer.Request
	m      Model          // nil: not found yet
	to     infer.Sink     // nil: a step of an ensemble, whose model stays pinned
	answer infer.SendFunc // a step's

	ready   bool            // it has passed the steps before the cache
	subject *cache.Subject  // of the cache that start asks
	asking  bool            // start is at it
	large   *infer.Response // a hit that was found then, and takes long to send
	rest    func() error    // the cache's, where it has to be waited for

	// Method values made once, since each would be an allocation.
	wait      func()         // run
	send, hit infer.SendFunc // Send, sendHit
}

// walk begins a walk.
func (p *Pipeline) walk(ctx context.Context, req *infer.Request, to infer.Sink) *walk {
	w, ok := p.walks.Get().(*walk)
	if !ok {
		w = &walk{p: p}
		w.wait, w.send, w.hit = w.run, w.Send, w.sendHit
	}
	w.ctx, w.req, w.to = ctx, req, to
	return w
}

// run takes all steps that are left, and waits for the end.
func (w *walk) run() { infer.Flush(w.Done(w.carry())) }

// carry is run without its end. A panic of ours ends the one request, which is recorded as
// any other.
func (w *walk) carry() (err error) {
	defer recovered(&err)
	if err := w.prepare(); err != nil {
		return err
	}
	switch {
	case w.large != nil:
		resp := w.large
		w.large = nil
		return w.Send(resp)
	case w.rest != nil:
		return w.rest()
	}
	return w.p.execute(w.ctx, w.m, w.req, w.send)
}

// start takes the steps that don't wait. False: there are more, for run. Else the walk may
// be another request's by now.
func (w *walk) start() (over bool) {
	if err := w.guarded((*walk).prepare); err != nil {
		infer.Flush(w.Done(err))
		return true
	}
	w.subject = w.p.subject(w.m)
	switch {
	case w.req.Placed():
		if w.subject != nil || !w.m.Places(w.req) {
			return false
		}
	case w.subject != nil:
		err := w.guarded((*walk).ask)
		if w.rest != nil || w.large != nil {
			return false
		}
		infer.Flush(w.Done(err))
		return true
	}
	return w.m.Start(w.ctx, w.req, w)
}

// prepare takes the steps before the cache, once.
func (w *walk) prepare() (err error) {
	if w.ready {
		return nil
	}
	w.ready = true
	if w.m == nil {
		if w.m, err = w.p.enter(w.ctx, w.req); err != nil {
			return err
		}
	}
	return w.p.checked(w.ctx, w.m, w.req)
}

// ask looks into the cache, without waiting.
func (w *walk) ask() (err error) {
	w.asking = true
	defer func() { w.asking = false }()
	w.rest, err = w.p.deps.Cache.Start(w.ctx, w.subject, w.m, w.req, w.hit)
	return err
}

// guarded takes a step. A panic of ours ends the one request.
func (w *walk) guarded(step func(*walk) error) (err error) {
	defer recovered(&err)
	err = step(w)
	return err
}

// recovered makes an error of a panic of ours.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = infer.Recovered(v)
	}
}

// classesAside is the size of outputs from which classes are made on a goroutine of their
// own.
const classesAside = 64 << 10

// Large is infer.Sink's.
func (w *walk) Large(resp *infer.Response) bool {
	for i := range w.req.Outputs {
		if w.req.Outputs[i].Classification == 0 {
			continue
		}
		size := 0
		for k := range resp.Outputs {
			size += len(resp.Outputs[k].Data)
		}
		if size >= classesAside {
			return true
		}
		break
	}
	return w.to.Large(resp)
}

// Send is infer.Sink's.
func (w *walk) Send(resp *infer.Response) (err error) {
	defer recovered(&err)
	if err := w.p.present(w.ctx, w.m, w.req, resp); err != nil {
		return err
	}
	if w.to == nil {
		return w.answer(resp)
	}
	return w.to.Send(resp)
}

// sendHit is Send, but for a large hit that the cache finds while it is asked by a caller
// who must not be kept: that one is left to run.
func (w *walk) sendHit(resp *infer.Response) error {
	if w.asking && w.Large(resp) {
		w.large = resp
		return nil
	}
	return w.Send(resp)
}

// Done is infer.Sink's.
func (w *walk) Done(err error) infer.Flusher {
	to := w.to
	w.leave(err)
	return to.Done(err)
}

// leave is the last step: the request is recorded at its model, which is given back.
func (w *walk) leave(err error) {
	p := w.p
	if w.m != nil {
		record(w.m, w.req, err)
		if w.to != nil {
			w.m.Release()
		}
	}
	*w = walk{p: p, wait: w.wait, send: w.send, hit: w.hit}
	p.walks.Put(w)
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
	req.Served, req.Decoupled = m.VersionText(), m.Decoupled()
	if p.deps.Tracer.On() || req.Trace != nil {
		p.traced(m, req)
	}
	return m, nil
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

// execute is the response cache, then the queue. What comes out of either is the backend's
// view of the outputs.
func (p *Pipeline) execute(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if req.Placed() {
		return p.executePlaced(ctx, m, req, send)
	}
	if s := p.subject(m); s != nil {
		return p.deps.Cache.Do(ctx, s, m, req, send)
	}
	return m.Do(ctx, req, send)
}

// subject is what a model's answers are kept by now; nil: they are not.
func (p *Pipeline) subject(m Model) *cache.Subject {
	if p.deps.Cache == nil {
		return nil
	}
	return m.Current()
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
	if resp.Err != nil {
		return nil
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

// record takes down at its model that a request has ended.
func record(m Model, req *infer.Request, err error) {
	req.Times.RequestEnd = infer.Now()
	m.Done(req, err)
	if req.Trace != nil {
		untraced(req, err)
	}
}
