package pipeline

import (
	"context"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// Guard says who calls and what they may do. It is asked before anything is read or
// looked up, so that nobody learns of a model what they may not know. Unauthenticated or
// PermissionDenied are its errors.
type Guard interface {
	// Open finds the caller, sets env.Principal, and decides on the action, and on the
	// model where env names one.
	Open(ctx context.Context, env *infer.Envelope) error
	// Model decides on a model that only the body names.
	Model(env *infer.Envelope, model string) error
}

// Admission bounds what callers may have going on. Its refusals are ResourceExhausted
// or Unavailable, with a reason.
type Admission interface {
	// Open takes a call in, or refuses it, by its envelope; it may set env.Admitted.
	Open(ctx context.Context, env *infer.Envelope) error
	// Request charges what is known of an inference once it is decoded and valid.
	Request(ctx context.Context, req *infer.Request) error
	// Close ends a call that Open took in.
	Close(env *infer.Envelope, end *infer.End)
	// Waits says that Open and Request may wait, as for limits that are shared over a
	// network.
	Waits() bool
}

// Open decides on headers alone whether a call may go on: identity and rights, whether
// the server takes calls, limits of the caller, and whether the model is there. The body
// is not read yet. Where limits are asked for over a network wait is not nil: the caller
// calls it once, on a goroutine that may block and before the request goes on, unless the
// call ends before; its error is Open's. Whatever came of it, Close is called once when
// the call has ended; also for a call that never got to Open.
//
// A Carrier is asked who calls and whether they may infer at all; the requests that it
// carries are opened one by one, with limits, spans and a line in the access log of their
// own. Rights on their models are asked for by Start.
func (p *Pipeline) Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	if env.Outer != nil {
		inherit(env, env.Outer)
	}
	p.begin(env)
	if env.Outer == nil {
		retarget(env)
	}
	if p.deps.Tracer.On() && !env.Carrier {
		p.deps.Tracer.Open(env)
	}
	err = p.identify(ctx, env)
	if err == nil && !env.Carrier {
		if p.patient {
			return func() error { return p.opened(env, p.admit(ctx, env)) }, nil
		}
		err = p.admit(ctx, env)
	}
	return nil, p.opened(env, err)
}

// Patient says that Open may give what has to be waited for.
func (p *Pipeline) Patient() bool { return p.patient }

// opened takes down that a call was taken in, or refused with err.
func (p *Pipeline) opened(env *infer.Envelope, err error) error {
	if env.Trace != nil {
		p.deps.Tracer.Admitted(env, err)
	}
	if env.Outer != nil {
		env.Header = nil
	}
	return err
}

// inherit gives a call what it has of the call that carries it, whose Header must still be
// valid.
func inherit(env, outer *infer.Envelope) {
	env.Protocol, env.Method, env.Path, env.Action = outer.Protocol, outer.Method, outer.Path, infer.ActionInference
	env.Remote, env.Unix, env.Peer, env.Certificate = outer.Remote, outer.Unix, outer.Peer, outer.Certificate
	env.Header = outer.Header
	env.Principal, env.Target, env.Placement = outer.Principal, outer.Target, outer.Placement
}

// begin takes down that a call was opened.
func (p *Pipeline) begin(env *infer.Envelope) {
	env.Opened = infer.Now()
	p.flight.of(env.Protocol).Add(1)
	switch p.cfg.Timings {
	case TimingsOnRequest:
		env.Timings = env.Header != nil && wanted(env.Header(TimingHeader))
	case TimingsAlways:
		env.Timings = true
	}
}

// identify is what Open asks first, and what never waits: who calls, what they may do,
// and whether the server takes calls.
func (p *Pipeline) identify(ctx context.Context, env *infer.Envelope) error {
	if p.deps.Guard != nil && env.Outer == nil {
		if err := p.deps.Guard.Open(ctx, env); err != nil {
			return err
		}
	}
	if env.Action == infer.ActionInference && p.stopping.Load() {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping,
			"the server is shutting down and has stopped accepting new requests")
	}
	return nil
}

// admit is the rest of what Open asks. A body for what can't be served is not worth reading.
func (p *Pipeline) admit(ctx context.Context, env *infer.Envelope) error {
	if p.deps.Admission != nil {
		if err := p.deps.Admission.Open(ctx, env); err != nil {
			return err
		}
	}
	if env.Action != infer.ActionInference || env.Model == "" {
		return nil
	}
	decoupled, err := p.deps.Models.Look(env.Model, env.Version)
	if err == nil && decoupled && !env.Streaming {
		err = infer.ErrDecoupled
	}
	return err
}

// Close ends a call: limits get back what it held, and who wants to know is told.
func (p *Pipeline) Close(env *infer.Envelope, end *infer.End) {
	if env.Opened != 0 {
		p.flight.of(env.Protocol).Add(-1)
	}
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

// InFlight are the calls of a protocol ("http" or "grpc") that were opened and have not
// ended.
func (p *Pipeline) InFlight(protocol string) int64 { return p.flight.of(protocol).Load() }

// flight counts calls by protocol.
type flight struct{ http, grpc atomic.Int64 }

func (f *flight) of(protocol string) *atomic.Int64 {
	if protocol == "grpc" {
		return &f.grpc
	}
	return &f.http
}

// Visible says that a list which a call asks for may show a model.
func (p *Pipeline) Visible(env *infer.Envelope, model string) bool {
	return p.Allowed(env, model) == nil
}

// Allowed decides on a model that a call's body names beside that of its envelope. Its
// errors are the Guard's.
func (p *Pipeline) Allowed(env *infer.Envelope, model string) error {
	if p.deps.Guard == nil {
		return nil
	}
	return p.deps.Guard.Model(env, model)
}

// known decides on a request whose body alone named the model, and gives it the
// caller's name, weight and scope of shared answers.
func (p *Pipeline) known(req *infer.Request) error {
	if req.Envelope == nil {
		return nil
	}
	req.Weight, req.Origin = req.Envelope.Weight, req.Envelope
	if who := req.Envelope.Principal; who != nil {
		req.Tenant, req.Caller = who.Tenant, who.Name
	}
	if req.Envelope.Model != "" {
		return nil
	}
	return p.Allowed(req.Envelope, req.Model)
}
