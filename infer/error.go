package infer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Code says what kind of failure a client sees. Each protocol maps codes in one
// place: httpapi/status.go and grpcapi/status.go.
type Code uint8

// The codes, with the HTTP status and the gRPC code they become. The order is not
// part of any wire format.
const (
	Unknown           Code = iota // 400, UNKNOWN
	InvalidArg                    // 400, INVALID_ARGUMENT
	AlreadyExists                 // 400, ALREADY_EXISTS
	Cancelled                     // 400, CANCELLED
	Unauthenticated               // 401, UNAUTHENTICATED
	PermissionDenied              // 403, PERMISSION_DENIED
	NotFound                      // 404, NOT_FOUND
	ResourceExhausted             // 429, RESOURCE_EXHAUSTED
	Internal                      // 500, INTERNAL
	Unsupported                   // 501, UNIMPLEMENTED
	Unavailable                   // 503, UNAVAILABLE
	numCodes
)

var codeNames = [...]string{"unknown", "invalid argument", "already exists", "cancelled", "unauthenticated",
	"permission denied", "not found", "resource exhausted", "internal", "unsupported", "unavailable"}

// String is the code in words.
func (c Code) String() string {
	if c < numCodes {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Codes lists every code, for tests that walk them all.
func Codes() []Code {
	all := make([]Code, numCodes)
	for i := range all {
		all[i] = Code(i)
	}
	return all
}

// Reason names a refusal for metrics and for the answer's reason header. "" is none.
type Reason string

// The reasons of refusals.
const (
	ReasonQueueFull     Reason = "queue_full"
	ReasonQueueTimeout  Reason = "queue_timeout"
	ReasonDeadline      Reason = "deadline"
	ReasonCancelled     Reason = "cancelled"
	ReasonStopping      Reason = "stopping"
	ReasonNotReady      Reason = "not_ready"
	ReasonMemory        Reason = "memory_full"
	ReasonWorkerLost    Reason = "worker_lost"
	ReasonTooLarge      Reason = "too_large"
	ReasonSequenceSlots Reason = "sequence_slots"    // a new sequence has waited too long for a slot of an instance
	ReasonSequenceLost  Reason = "sequence_lost"     // the sequence has ended, or a newer one of its ID lives elsewhere
	ReasonUnplaced      Reason = "sequence_unplaced" // nothing in the mesh says where the sequence lives
	ReasonCallCycle     Reason = "call_cycle"        // a call that only its own ancestors' instances could serve
	ReasonCallDepth     Reason = "call_depth"        // models call one another too deep
	ReasonSlowClient    Reason = "slow_client"       // answers of a stream wait for their client beyond the bound

	ReasonUnauthenticated Reason = "unauthenticated" // who calls is not proved
	ReasonForbidden       Reason = "forbidden"       // the policy does not give the right
	ReasonRestricted      Reason = "restricted"      // a restricted API without its header
	ReasonNotLocal        Reason = "not_local"       // from another host, without a policy
	ReasonKeysPending     Reason = "keys_pending"    // the issuer's keys are being fetched

	// Of limits on callers, and of their shares of a full queue.
	ReasonRate          Reason = "rate_limited"
	ReasonConcurrency   Reason = "concurrency"
	ReasonBytesInFlight Reason = "bytes_in_flight"
	ReasonFairShare     Reason = "fair_share"
	ReasonSequences     Reason = "sequences" // the caller has as many sequences as it may
)

// Error is the one error a client can see.
type Error struct {
	Code   Code
	Err    error
	Reason Reason // why it was refused; "" when it was no refusal
	// Retry is when trying again may succeed; 0: nothing is known of that.
	Retry time.Duration
	// Caller says that an error of code Internal is the caller's fault: no fault of the
	// server is counted, and the log has no error line of it. Other codes don't need it.
	Caller bool
}

// Error is the text for the client; it never carries paths or names of our insides.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; %w works as in fmt.Errorf.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// CallerErrorf makes an Error of code Internal that is the caller's fault: Triton
// answers so to a body that is no JSON, among others, and clients match its status.
func CallerErrorf(format string, args ...any) error {
	return &Error{Code: Internal, Caller: true, Err: fmt.Errorf(format, args...)}
}

// Refusef makes an Error with a reason.
func Refusef(code Code, reason Reason, format string, args ...any) error {
	return &Error{Code: code, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// CodeOf reads the code from anywhere in the chain. No code is Internal, a context
// error is Cancelled. It must not be called with nil.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Cancelled
	}
	return Internal
}

// IsCallerError says that some Error in the chain is marked as the caller's fault. Codes
// other than Internal name whose fault it is themselves.
func IsCallerError(err error) bool {
	var e *Error
	for errors.As(err, &e) {
		if e.Caller {
			return true
		}
		err = e.Err
	}
	return false
}

// ReasonOf reads the reason from anywhere in the chain; "" where there is none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) && e.Reason != "" {
		return e.Reason
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ReasonDeadline
	}
	if errors.Is(err, context.Canceled) {
		return ReasonCancelled
	}
	return ""
}

// RetryOf is how long a refused caller should wait, as far as that was worked out; 0:
// it was not.
func RetryOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.Retry
	}
	return 0
}

// ErrWorkerLost is in the chain of every batch failure whose cause is the death of
// its worker; such a batch may be tried again when its requests are stateless.
var ErrWorkerLost = errors.New("the model's worker process ended")

// ErrTensorLost is in the chain of the failure of a request one of whose inputs was resident
// (Place.IsResident) where a worker has ended. The request can't be executed again as it is.
var ErrTensorLost = errors.New("a tensor in device memory was lost with its worker")

// ErrDecoupled says that the model may answer a request any number of times, which
// the call can't take. Front ends put their own words in its place.
var ErrDecoupled = Errorf(Unsupported, "the call takes one response, and the model has a decoupled transaction policy")

// Bug is in the chain of an error that stands for a panic of ours. Its text is empty:
// what it holds is for the log alone.
type Bug struct {
	Value any
	Stack []byte
}

// Error is empty.
func (*Bug) Error() string { return "" }

// Recovered makes an Internal error of what recover returned, so that a bug of ours
// ends one request and not the server.
func Recovered(value any) error {
	return Errorf(Internal, "internal error%w", &Bug{Value: value, Stack: debug.Stack()})
}
