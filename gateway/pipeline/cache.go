package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Cache puts a response cache before the queues of models that have one; nil: none. It
// is called before the first request.
func (p *Pipeline) Cache(step *cache.Step) { p.cache = step }

// cached is the part of a Model that the response cache needs; a model without it keeps
// no answers.
type cached interface{ cache.Runner }

// keeper is a model whose answers are kept, and what they are kept by now; nil: they are
// not.
func (p *Pipeline) keeper(m Model) (cached, *cache.Subject) {
	if p.cache == nil {
		return nil, nil
	}
	c, ok := m.(cached)
	if !ok {
		return nil, nil
	}
	return c, c.Current()
}

// execute is the part that each step of an ensemble repeats: the response cache, then
// the queue. What comes out of either is the backend's view of the outputs.
func (p *Pipeline) execute(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if req.Placed() {
		return p.executePlaced(ctx, m, req, send)
	}
	if c, s := p.keeper(m); s != nil {
		return p.cache.Do(ctx, s, c, req, send)
	}
	return m.Do(ctx, req, send)
}
