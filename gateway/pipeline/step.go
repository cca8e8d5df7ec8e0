package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Step carries a request that is a step of an ensemble: the same order of steps as
// Infer's for a model that the ensemble has pinned, with its own statistics, and its own
// trace where the ensemble's request has one. What the front ends are asked for once,
// identity and admission, is not asked again.
func (p *Pipeline) Step(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	req.Times.RequestStart = infer.Now()
	if req.Trace != nil {
		p.traced(m, req)
	}
	return p.carry(ctx, m, req, send)
}
