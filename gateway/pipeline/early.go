package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// OpenEarly is Open for a front end that must not wait: who calls, and whether they may,
// is decided when it returns. Where limits are asked for over a network wait is not nil:
// the caller calls it once, on a goroutine that may block and before Infer or Start, unless
// the call ends before; its error is Open's. As with Open, Close is called once whatever
// came of it.
func (p *Pipeline) OpenEarly(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	if !p.patient {
		_, err := p.Open(ctx, env)
		return nil, err
	}
	p.begin(env)
	retarget(env)
	if p.deps.Tracer.On() {
		p.deps.Tracer.Open(env)
	}
	rest := func() error {
		err := p.admit(ctx, env)
		if env.Trace != nil {
			p.deps.Tracer.Admitted(env, err)
		}
		return err
	}
	if err := p.identify(ctx, env); err != nil {
		if env.Trace != nil {
			p.deps.Tracer.Admitted(env, err)
		}
		return nil, err
	}
	return rest, nil
}
