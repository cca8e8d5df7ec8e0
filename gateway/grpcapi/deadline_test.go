package grpcapi

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// The request's deadline lies before the caller's, by little: the answer that tells of
// it has to be on its way when the transport resets the call.
func TestDeadlineIsAnsweredBeforeTheReset(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec)
		deadlines := make(chan time.Time, 1)
		r.pipeline.infer = func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
			at, _ := ctx.Deadline()
			deadlines <- at
			<-ctx.Done()
			return infer.Refusef(infer.Cancelled, infer.ReasonDeadline, "request cancelled: %w", ctx.Err())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := r.client.ModelInfer(ctx, fp32Request(4))
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		at, caller := <-deadlines, deadlineOf(t, ctx)
		if early := caller.Sub(at); early <= 0 || early > 10*time.Millisecond {
			t.Errorf("the request's deadline is %v before the caller's", early)
		}
		r.settled(t)
	})
}

func deadlineOf(t *testing.T, ctx context.Context) time.Time {
	t.Helper()
	at, ok := ctx.Deadline()
	if !ok {
		t.Fatal("no deadline")
	}
	return at
}
