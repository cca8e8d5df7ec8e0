package httpapi

import (
	"context"
	"math/rand/v2"

	"github.com/sluice-serve/sluice/infer"
)

// Start answers in all ways that there are: at once, by another goroutine, and on one
// that waits. Only the last may block.
func (f *fake) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	answer := func() { f.Infer(ctx, req, to) }
	switch way := rand.IntN(3); {
	case f.infer != nil || way == 0:
		return answer
	case way == 1:
		go answer()
	default:
		answer()
	}
	return nil
}

// Infer answers on this goroutine.
func (f *fake) Infer(ctx context.Context, req *infer.Request, to infer.Sink) {
	var err error
	defer func() { infer.Flush(to.Done(err)) }()
	defer recovered(&err)
	err = f.answer(ctx, req, to.Send)
}
