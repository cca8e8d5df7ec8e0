package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// OpenStream is Open for a call that carries any number of requests, each of which is a
// call of its own (Within). Here is decided who calls and whether they may infer at all;
// limits, and rights on a model, are each request's. Close ends it as any other call.
func (p *Pipeline) OpenStream(ctx context.Context, env *infer.Envelope) (context.Context, error) {
	p.begin(env)
	retarget(env)
	if p.deps.Guard != nil {
		if err := p.deps.Guard.Open(ctx, env); err != nil {
			return nil, err
		}
	}
	if p.stopping.Load() {
		return nil, errStopping()
	}
	return ctx, nil
}

// Within opens a request that came in a stream as a call of its own, with limits, spans
// and a line in the access log: env, which names the message's size, becomes one of
// outer's caller. The model's rights are asked for by Infer or Start. Whatever Within
// returned, Close is called once for env when the request has ended. outer's Header must
// still be valid.
func (p *Pipeline) Within(ctx context.Context, outer, env *infer.Envelope) error {
	env.Protocol, env.Method, env.Path, env.Action = outer.Protocol, outer.Method, outer.Path, infer.ActionInference
	env.Remote, env.Unix, env.Peer, env.Certificate, env.Header = outer.Remote, outer.Unix, outer.Peer, outer.Certificate, outer.Header
	env.Principal, env.Target, env.Placement = outer.Principal, outer.Target, outer.Placement
	p.begin(env)
	if p.deps.Tracer.On() {
		p.deps.Tracer.Open(env)
	}
	err := p.admitWithin(ctx, env)
	if env.Trace != nil {
		p.deps.Tracer.Admitted(env, err)
	}
	env.Header = nil
	return err
}

func (p *Pipeline) admitWithin(ctx context.Context, env *infer.Envelope) error {
	if p.stopping.Load() {
		return errStopping()
	}
	if p.deps.Admission != nil {
		return p.deps.Admission.Open(ctx, env)
	}
	return nil
}

func errStopping() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the server is shutting down and has stopped accepting new requests")
}
