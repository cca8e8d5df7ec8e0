package httpapi

import (
	"errors"
	"strconv"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// ReasonHeader names why a call was refused (infer.Reason): queue_full, queue_timeout,
// deadline, cancelled, stopping, not_ready, memory_full, worker_lost, too_large,
// rate_limited, concurrency, bytes_in_flight, fair_share,
// sequences, sequence_slots, sequence_lost.
const ReasonHeader = "X-Sluice-Reason"

// Status is the HTTP status of a code.
// Source: the original's map, and 401, 403 and 429 of STYLE.md.
func Status(c infer.Code) int {
	switch c {
	case infer.Unauthenticated:
		return 401
	case infer.PermissionDenied:
		return 403
	case infer.NotFound:
		return 404
	case infer.ResourceExhausted:
		return 429
	case infer.Internal:
		return 500
	case infer.Unsupported:
		return 501
	case infer.Unavailable:
		return 503
	}
	return 400 // Unknown, InvalidArg, AlreadyExists, Cancelled
}

// retryAfter is how many seconds a refused caller should wait, "" where trying again
// changes nothing.
func retryAfter(r infer.Reason, known time.Duration) string {
	if known > 0 {
		return strconv.FormatInt(int64((known+time.Second-1)/time.Second), 10)
	}
	switch r {
	case infer.ReasonFairShare, infer.ReasonQueueFull, infer.ReasonQueueTimeout, infer.ReasonMemory, infer.ReasonWorkerLost,
		infer.ReasonStopping, infer.ReasonNotReady, infer.ReasonKeysPending:
		return "1"
	}
	return ""
}

// fail makes the reply the error's.
func (r *Reply) fail(err error) {
	r.text(Status(infer.CodeOf(err)), err.Error())
	if r.Status == 401 {
		r.Set("WWW-Authenticate", "Bearer") // RFC 9110, 15.5.2
	}
	if reason := infer.ReasonOf(err); reason != "" {
		r.Set(ReasonHeader, string(reason))
		if s := retryAfter(reason, infer.RetryOf(err)); s != "" {
			r.Set("Retry-After", s)
		}
	}
}

// text makes the reply an error body of the original's shape.
func (r *Reply) text(status int, text string) {
	r.reset()
	r.Status = status
	r.ContentType = typeJSON
	b := append(r.buf[:0], `{"error":`...)
	b = json.AppendString(b, text)
	r.setBody(append(b, '}'))
}

// jsonFault gives a fault of a JSON document its code and the original's words: what
// is no JSON, and what has the wrong type, is Internal there.
func jsonFault(err error, field string) error {
	var e *json.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Text == json.TooDeep {
		return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge, "JSON nesting depth exceeds maximum allowed limit (%d)", json.MaxDepth)
	}
	if e.Syntax {
		return infer.CallerErrorf("failed to parse the request JSON buffer: %w", e)
	}
	if field == "" {
		return infer.CallerErrorf("%w", e)
	}
	return infer.CallerErrorf("Unable to parse '%s': %w", field, e)
}
