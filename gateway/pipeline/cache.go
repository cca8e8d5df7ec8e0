package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// subject is what a model's answers are kept by now; nil: they are not.
func (p *Pipeline) subject(m Model) *cache.Subject {
	if p.deps.Cache == nil {
		return nil
	}
	return m.Current()
}

// execute is the part that each step of an ensemble repeats: the response cache, then
// the queue. What comes out of either is the backend's view of the outputs.
func (p *Pipeline) execute(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if req.Placed() {
		return p.executePlaced(ctx, m, req, send)
	}
	if s := p.subject(m); s != nil {
		return p.deps.Cache.Do(ctx, s, m, req, send)
	}
	return m.Do(ctx, req, send)
}
