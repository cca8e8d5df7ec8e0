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

// execute is the part that each step of an ensemble repeats: the response cache, then
// the queue. What comes out of either is the backend's view of the outputs.
func (p *Pipeline) execute(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if p.cache != nil {
		if c, ok := m.(cached); ok {
			if s := c.Current(); s != nil {
				return p.cache.Do(ctx, s, c, req, send)
			}
		}
	}
	return m.Do(ctx, req, send)
}
