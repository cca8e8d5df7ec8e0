package grpcapi

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-serve/sluice/gateway/h2"
)

// RetryKey is the trailing metadata key with the whole seconds that a refused caller
// should wait, as in HTTP's Retry-After.
const RetryKey = "retry-after"

// retryable adds to a refusal when trying again may succeed: to the trailing metadata,
// and exactly in a google.rpc.RetryInfo; 0: nothing.
// Source: google/rpc/error_details.proto.
func retryable(ctx context.Context, st *status.Status, after time.Duration) *status.Status {
	if after <= 0 {
		return st
	}
	seconds := strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10)
	if call, ok := h2.FromContext(ctx); ok {
		call.SetTrailer(RetryKey, seconds)
	} else if grpc.ServerTransportStreamFromContext(ctx) != nil {
		// it fails only once the call is answered, and then nobody can be told
		_ = grpc.SetTrailer(ctx, metadata.Pairs(RetryKey, seconds))
	}
	detailed, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil { // a status without details is right too
		return st
	}
	return detailed
}
