package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// ReasonKey is the trailing metadata key that names why a call was refused; its
// values are those of infer.Reason.
const ReasonKey = "x-sluice-reason"

// stoppingText is the original's answer to calls that come while it stops.
// Source: reference A3, shutdown.
const stoppingText = "GRPC server is shutting down and has stopped accepting new requests."

// Code is the gRPC code of an infer.Code: the one of the same name.
// Source: the original's gRPC map, reference A1.
func Code(c infer.Code) codes.Code {
	switch c {
	case infer.Unknown:
		return codes.Unknown
	case infer.InvalidArg:
		return codes.InvalidArgument
	case infer.AlreadyExists:
		return codes.AlreadyExists
	case infer.Cancelled:
		return codes.Canceled
	case infer.Unauthenticated:
		return codes.Unauthenticated
	case infer.PermissionDenied:
		return codes.PermissionDenied
	case infer.NotFound:
		return codes.NotFound
	case infer.ResourceExhausted:
		return codes.ResourceExhausted
	case infer.Unsupported:
		return codes.Unimplemented
	case infer.Unavailable:
		return codes.Unavailable
	}
	return codes.Internal
}

// overdue says that the call's deadline has passed: the client's reset, which cancels
// the call, may arrive before the server's own timer fires.
func overdue(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ok && !time.Now().Before(at)
}

// statusOf makes the error that a transport sends: its code, its text, and its reason
// in the trailing metadata. A call that ran past its own deadline is
// DEADLINE_EXCEEDED, as gRPC names it. Errors that are a gRPC status already pass.
func statusOf(ctx context.Context, err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code, reason := Code(infer.CodeOf(err)), infer.ReasonOf(err)
	if code == codes.Canceled && (reason == infer.ReasonDeadline || overdue(ctx)) {
		code = codes.DeadlineExceeded
	}
	if st, ok := h2.FromContext(ctx); ok && reason != "" {
		st.SetTrailer(ReasonKey, string(reason))
	} else if reason != "" && grpc.ServerTransportStreamFromContext(ctx) != nil {
		// it fails only once the call is answered, and then nobody can be told
		_ = grpc.SetTrailer(ctx, metadata.Pairs(ReasonKey, string(reason)))
	}
	return &failure{retryable(ctx, status.New(code, err.Error()), infer.RetryOf(err)), err}
}

// failure is the error of a call as gRPC sends it, with its cause for whoever is told
// how the call ended.
type failure struct {
	status *status.Status
	cause  error
}

// Error is the text that the client gets.
func (f *failure) Error() string { return f.status.Message() }

// GRPCStatus is what grpc-go looks for.
func (f *failure) GRPCStatus() *status.Status { return f.status }

// Unwrap gives the cause, with its code and reason.
func (f *failure) Unwrap() error { return f.cause }
