package grpcapi

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// A refusal that knows says when to come back, exactly.
func TestRefusalsSayWhenToRetry(t *testing.T) {
	err := &infer.Error{Code: infer.ResourceExhausted, Reason: infer.ReasonRate, Retry: 1500 * time.Millisecond, Err: infer.ErrDecoupled}
	details := status.Convert(statusOf(t.Context(), err)).Details()
	if len(details) != 1 {
		t.Fatalf("details %v", details)
	}
	info, ok := details[0].(*errdetails.RetryInfo)
	if !ok || info.GetRetryDelay().AsDuration() != err.Retry {
		t.Errorf("details %v", details)
	}
	if details := status.Convert(statusOf(t.Context(), infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "full"))).Details(); len(details) != 0 {
		t.Errorf("without a time: %v", details)
	}
}
