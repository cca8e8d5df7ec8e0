package accesslog

import (
	"errors"

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
		return ofStatus(env.Protocol, end.Status)
	}
	reason := infer.ReasonOf(end.Err)
	switch infer.CodeOf(end.Err) {
	case infer.Unauthenticated, infer.PermissionDenied:
		return Denied
	case infer.Cancelled:
		return Cancelled
	case infer.ResourceExhausted:
		return Refused
	case infer.Unavailable:
		if reason == infer.ReasonWorkerLost {
			return Failed
		}
		return Refused
	case infer.Internal:
		if malformed(end) {
			return Invalid
		}
		return Failed
	}
	return Invalid
}

// ofStatus is for answers that are no error of ours: a health check that says no, a path
// that is none, and what broke before an error was made of it.
func ofStatus(protocol string, status int) string {
	switch {
	case protocol == "grpc" && status == 0, protocol == "http" && status >= 200 && status < 400:
		return OK
	case protocol == "http" && status >= 400 && status < 500:
		return Invalid
	}
	return Failed
}

// malformed says that an inference never got to a queue and that no bug of ours stopped
// it. The original answers 500 to a body that can't be read, and so do we, but it is the
// caller's fault all the same.
func malformed(end *infer.End) bool {
	var bug *infer.Bug
	return end.Request != nil && end.Request.Times.QueueStart == 0 && !errors.As(end.Err, &bug)
}
