package grpcapi

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// A call whose limits are asked for over a network holds up no other call of its
// connection; one that is refused then, or whose caller leaves meanwhile, ends as any other.
func TestOpeningThatWaitsHoldsUpNobody(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan error)
	r := start(t, func(_ *Config, r *rig) {
		r.pipeline.patient = true
		r.pipeline.open = func(ctx context.Context, env *infer.Envelope) error {
			if env.Header("x-test") == "" {
				return nil
			}
			asked <- struct{}{}
			select {
			case err := <-answer:
				return err
			case <-ctx.Done():
				return infer.Errorf(infer.Cancelled, "left: %w", ctx.Err())
			}
		}
	})
	slow := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := r.client.ModelInfer(withHeader(ctx), fp32Request(10))
			ended <- err
		}()
		<-asked
		m := fp32Request(300)
		got, err := r.client.ModelInfer(t.Context(), m) // on the same connection
		if err != nil {
			t.Fatal(err)
		}
		checkEcho(t, m, got)
		return ended
	}
	first := slow(t.Context())
	answer <- nil
	if err := <-first; err != nil {
		t.Error(err)
	}
	first = slow(t.Context())
	answer <- infer.Errorf(infer.ResourceExhausted, "too much")
	if err := <-first; status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	first = slow(ctx)
	leave()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	r.settled(t)
}

func withHeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-test", "slow")
}
