package backend

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// The parameters of requests that tell their context: see Info.RequestContext.
// Source: message LoadResponse, proto/worker/worker.proto.
const (
	TimeoutParam     = "sluice.timeout_us"
	TraceparentParam = "sluice.traceparent"
	TracestateParam  = "sluice.tracestate"
)

// Context is what is known of a request beside what its client sends to the model.
type Context struct {
	Timeout     time.Duration // as the client gave it; 0: none
	Traceparent string        // as W3C Trace Context has it; "": it is not traced
	Tracestate  string        // that of the client, unchanged; "": none
}

// ContextOf takes the context from the end of a request's parameters.
func ContextOf(params infer.Params) (c Context, rest infer.Params) {
	for n := len(params) - 1; n >= 0; n-- {
		switch p := &params[n]; {
		case p.Name == TimeoutParam && p.Value.Kind == infer.KindInt64:
			c.Timeout = time.Duration(p.Value.Int) * time.Microsecond
		case p.Name == TraceparentParam && p.Value.Kind == infer.KindString:
			c.Traceparent = p.Value.Str
		case p.Name == TracestateParam && p.Value.Kind == infer.KindString:
			c.Tracestate = p.Value.Str
		default:
			return c, params[:n+1]
		}
	}
	return c, nil
}
