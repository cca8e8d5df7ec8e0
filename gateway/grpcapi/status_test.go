package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

func TestEveryCodeHasItsOwn(t *testing.T) {
	want := map[infer.Code]codes.Code{infer.Unknown: codes.Unknown, infer.InvalidArg: codes.InvalidArgument,
		infer.AlreadyExists: codes.AlreadyExists, infer.Cancelled: codes.Canceled, infer.Unauthenticated: codes.Unauthenticated,
		infer.PermissionDenied: codes.PermissionDenied, infer.NotFound: codes.NotFound, infer.ResourceExhausted: codes.ResourceExhausted,
		infer.Internal: codes.Internal, infer.Unsupported: codes.Unimplemented, infer.Unavailable: codes.Unavailable}
	for _, c := range infer.Codes() {
		expected, ok := want[c]
		if !ok {
			t.Errorf("code %v is in no map", c)
			continue
		}
		err := statusOf(t.Context(), fmt.Errorf("around: %w", infer.Errorf(c, "text")))
		if got := status.Convert(err); got.Code() != expected || got.Message() != "around: text" {
			t.Errorf("code %v: got %v, want %v", c, got, expected)
		}
	}
}

func TestStatusOfOtherErrors(t *testing.T) {
	for _, test := range []struct {
		err  error
		want codes.Code
	}{
		{errors.New("plain"), codes.Internal},
		{context.Canceled, codes.Canceled},
		{fmt.Errorf("waiting: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{infer.Refusef(infer.Cancelled, infer.ReasonDeadline, "too late"), codes.DeadlineExceeded},
		{status.Error(codes.DataLoss, "as it is"), codes.DataLoss},
	} {
		if got := status.Code(statusOf(t.Context(), test.err)); got != test.want {
			t.Errorf("%v: got %v, want %v", test.err, got, test.want)
		}
	}
}
