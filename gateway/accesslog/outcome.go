package accesslog

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// The outcomes of calls.
const (
	OK        = "ok"
	Invalid   = "invalid"   // the request's own fault: malformed, no such model, not supported
	Denied    = "denied"    // the caller may not
	Refused   = "refused"   // by a limit, or by the state of the server or the model
	Cancelled = "cancelled" // the caller left, or its deadline passed
	Failed    = "failed"    // a fault of the server, a worker or a model
)

// Outcomes are all of them.
func Outcomes() []string { return []string{OK, Invalid, Denied, Refused, Cancelled, Failed} }

// Outcome sorts how a call ended.
func Outcome(env *infer.Envelope, end *infer.End) string {
	if end.Err == nil {
		return ofStatus(env, end.Status)
	}
	if transport(env, end.Err) {
		return ofGRPC(end.Status)
	}
	switch infer.CodeOf(end.Err) {
	case infer.Unauthenticated, infer.PermissionDenied:
		return Denied
	case infer.Cancelled:
		return Cancelled
	case infer.ResourceExhausted:
		return Refused
	case infer.Unavailable:
		if ServerFault(end.Err) {
			return Failed
		}
		return Refused
	case infer.Internal:
		if ServerFault(end.Err) {
			return Failed
		}
	}
	return Invalid
}

// ServerFault says that a call failed by a fault of the server, a worker or a model: its
// outcome is Failed, and the server's log has an error line of it. It must not be called
// with nil.
func ServerFault(err error) bool {
	if fromLibrary(err) {
		return false
	}
	switch infer.CodeOf(err) {
	case infer.Internal:
		return !infer.IsCallerError(err)
	case infer.Unavailable:
		return infer.ReasonOf(err) == infer.ReasonWorkerLost || errors.Is(err, infer.ErrWorkerLost)
	}
	return false
}

// ofStatus is for answers that are no error of ours: a health check that says no, a path
// that is none, and what broke before an error was made of it.
func ofStatus(env *infer.Envelope, status int) string {
	switch {
	case env.Protocol == "grpc" && status == 0, env.Protocol == "http" && status >= 200 && status < 400:
		return OK
	case env.Protocol == "http" && env.Action == infer.ActionHealth && env.Opened != 0 && status < 500:
		return Refused // "no" is the state of the server, or of the model
	case env.Protocol == "http" && status >= 400 && status < 500:
		return Invalid
	}
	return Failed
}

// transport says that an error is the gRPC library's, not one of ours in its clothes: a
// caller that left while it was answered, a message that is too long.
func transport(env *infer.Envelope, err error) bool {
	return env.Protocol == "grpc" && fromLibrary(err)
}

func fromLibrary(err error) bool {
	var known *infer.Error
	return !errors.As(err, &known) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		status.Code(err) != codes.Unknown && status.Code(err) != codes.Internal
}

// ofGRPC sorts an error of the library by its code.
func ofGRPC(status int) string {
	switch codes.Code(status) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable: // the last is a connection that is gone
		return Cancelled
	case codes.Unauthenticated, codes.PermissionDenied:
		return Denied
	case codes.ResourceExhausted:
		return Refused
	}
	return Invalid
}
