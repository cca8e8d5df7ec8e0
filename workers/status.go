package workers

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// statusOf is err for the wire: the gRPC code of the same name and the text.
// Source: section "Errors and status" of the project's rules.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err // gRPC's own
	}
	code := codes.Internal
	switch infer.CodeOf(err) {
	case infer.Unknown:
		code = codes.Unknown
	case infer.InvalidArg:
		code = codes.InvalidArgument
	case infer.AlreadyExists:
		code = codes.AlreadyExists
	case infer.Cancelled:
		code = codes.Canceled
	case infer.Unauthenticated:
		code = codes.Unauthenticated
	case infer.PermissionDenied:
		code = codes.PermissionDenied
	case infer.NotFound:
		code = codes.NotFound
	case infer.ResourceExhausted:
		code = codes.ResourceExhausted
	case infer.Unsupported:
		code = codes.Unimplemented
	case infer.Unavailable:
		code = codes.Unavailable
	}
	return status.Error(code, textOf(err))
}
