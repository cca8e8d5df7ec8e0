package grpcapi

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// Where nobody reads the log, a refused call waits for it, and no other does.
func TestLogHoldsNobody(t *testing.T) {
	reads, logs := make(chan struct{}), make(chan struct{}, 100)
	r := start(t, func(c *Config, r *rig) {
		c.Loops = []*loop.Loop{looptest.Start(t)}
		r.failed = func(context.Context, string, *infer.Request, error) {
			logs <- struct{}{}
			<-reads
		}
		r.pipeline.open = func(_ context.Context, env *infer.Envelope) error {
			if env.Header("refuse") == "panic" {
				panic("asked")
			}
			if env.Header("refuse") != "" {
				return infer.Errorf(infer.PermissionDenied, "no")
			}
			return nil
		}
	})
	refused := r.client
	settle := func(c inference.GRPCInferenceServiceClient) {
		t.Helper()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := c.ModelInfer(ctx, fp32Request(4)); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
	}
	settle(refused)
	r.dial(t, r.server.Addr().String())
	good := r.client
	settle(good)
	ended := make(chan codes.Code, 2)
	for _, why := range []string{"yes", "panic"} {
		go func() {
			_, err := refused.ModelInfer(metadata.AppendToOutgoingContext(t.Context(), "refuse", why), fp32Request(4))
			ended <- status.Code(err)
		}()
		<-logs
		settle(good)
		settle(refused)
	}
	close(reads)
	a, b := <-ended, <-ended
	if a+b != codes.PermissionDenied+codes.Internal {
		t.Errorf("the refused: %v, %v", a, b)
	}
}
