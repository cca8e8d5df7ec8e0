package grpcapi

import (
	"context"
	"math/rand/v2"

	"github.com/sluice-serve/sluice/infer"
)

// Start answers in all ways that there are: at once, by another goroutine, and on one
// that waits. Only the last may block.
func (p *fakePipeline) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	answer := func() { p.Infer(ctx, req, to) }
	switch way := rand.IntN(3); {
	case p.infer != nil || way == 0:
		return answer
	case way == 1:
		go answer()
	default:
		answer()
	}
	return nil
}

// Infer answers on this goroutine.
func (p *fakePipeline) Infer(ctx context.Context, req *infer.Request, to infer.Sink) {
	var err error
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
		infer.Flush(to.Done(err))
	}()
	err = p.answer(ctx, req, to.Send)
}
