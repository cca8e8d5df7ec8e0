package client

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// withContext is a request's parameters with its context behind them, for workers that want it.
// Parameters of a client that have these names are left out.
func withContext(q *infer.Request) infer.Params {
	at, state := spanOf(q)
	params := make(infer.Params, 0, len(q.Params)+3)
	for _, p := range q.Params {
		if p.Name != backend.TimeoutParam && p.Name != backend.TraceparentParam && p.Name != backend.TracestateParam {
			params = append(params, p)
		}
	}
	if q.Timeout > 0 {
		params = append(params, infer.Param{Name: backend.TimeoutParam, Value: infer.Value{Kind: infer.KindInt64, Int: q.Timeout.Microseconds()}})
	}
	if at.Trace != (infer.TraceID{}) {
		params = append(params, infer.Param{Name: backend.TraceparentParam, Value: infer.Value{Kind: infer.KindString, Str: traceparent(at)}})
		if state != "" {
			params = append(params, infer.Param{Name: backend.TracestateParam, Value: infer.Value{Kind: infer.KindString, Str: state}})
		}
	}
	return slices.Clip(params)
}

// spanOf is where a request, or the one that it is a step of, stands in its trace, and the tracestate that came with that.
func spanOf(q *infer.Request) (at infer.SpanContext, state string) {
	if at = q.SpanContext(); at.Trace != (infer.TraceID{}) || q.Origin == nil {
		return at, q.TraceState()
	}
	return q.Origin.Span, q.Origin.State
}

// traceparent is the header's text.
func traceparent(at infer.SpanContext) string {
	flags := "00"
	if at.Sampled {
		flags = "01"
	}
	return "00-" + at.Trace.String() + "-" + at.Span.String() + "-" + flags
}
