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
		type moment struct {
			id             string
			deadline, seen time.Time
		}
		deadlines := make(chan moment, 10)
		r.pipeline.infer = func(ctx context.Context, req *infer.Request, _ infer.SendFunc) error {
			at, _ := ctx.Deadline()
			deadlines <- moment{req.ID, at, time.Now()}
			<-ctx.Done()
			return infer.Refusef(infer.Cancelled, infer.ReasonDeadline, "request cancelled: %w", ctx.Err())
		}
		// On a busy machine a call's time may be over before it arrives.
		for allowed := 200 * time.Millisecond; ; allowed *= 2 {
			m := fp32Request(4)
			m.Id = allowed.String()
			ctx, cancel := context.WithTimeout(t.Context(), allowed)
			defer cancel()
			if _, err := r.client.ModelInfer(ctx, m); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
			var got moment
			for len(deadlines) > 0 && got.id != m.Id {
				got = <-deadlines
			}
			if got.id != m.Id && allowed < 20*time.Second {
				continue
			}
			// How long the call was on its way is the machine's matter: from the moment at
			// which it is seen, the deadline is always nearer than the caller's was at first
			// and never further ahead of the caller's than it is moved.
			if early := deadlineOf(t, ctx).Sub(got.deadline); early > 6*time.Millisecond {
				t.Errorf("the request's deadline is %v before the caller's", early)
			}
			if left := got.deadline.Sub(got.seen); left > allowed-5*time.Millisecond {
				t.Errorf("%v are left of the caller's %v", left, allowed)
			}
			break
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
