package client

import (
	"github.com/sluice-serve/sluice/infer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errLost is how batches and calls end whose worker ended.
func errLost() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "%w", infer.ErrWorkerLost)
}

// errLost is errLost, with the name of a process that is not shared: that says whose backend's it is.
func (w *worker) errLost() error {
	if w.own == nil {
		return errLost()
	}
	return infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "%w (%s)", infer.ErrWorkerLost, w.name)
}

// errGone is how batches and calls end whose version was unloaded.
func errGone() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the model's instance was unloaded")
}

// fromStatus makes a worker's answer to a call an error of infer, with its own text.
func fromStatus(err error) error {
	s := status.Convert(err)
	return infer.Errorf(codeOf(s.Code()), "%s", s.Message())
}

func codeOf(c codes.Code) infer.Code {
	switch c {
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition:
		return infer.InvalidArg
	case codes.AlreadyExists:
		return infer.AlreadyExists
	case codes.Canceled, codes.DeadlineExceeded:
		return infer.Cancelled
	case codes.Unauthenticated:
		return infer.Unauthenticated
	case codes.PermissionDenied:
		return infer.PermissionDenied
	case codes.NotFound:
		return infer.NotFound
	case codes.ResourceExhausted:
		return infer.ResourceExhausted
	case codes.Unimplemented:
		return infer.Unsupported
	case codes.Unavailable:
		return infer.Unavailable
	case codes.Unknown:
		return infer.Unknown
	}
	return infer.Internal
}
