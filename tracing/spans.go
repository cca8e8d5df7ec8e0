package tracing

import (
	"encoding/binary"

	"github.com/sluice-serve/sluice/infer"
)

// The headers of a caller's trace.
// Source: W3C Trace Context and W3C Baggage.
const (
	headerParent  = "traceparent"
	headerState   = "tracestate"
	headerBaggage = "baggage"
)

// Spans takes sampled calls to make spans of; package otlp's Exporter fits.
type Spans interface {
	// Take must not block, and takes f from any goroutine.
	Take(f *infer.TraceFamily)
}

// Open decides whether spans are made of a call. The caller's decision counts where it
// made one; else inferences are sampled as the settings of their model say, calls that
// load and unload always, and all others never. A call that is not sampled costs the
// look at one header. Without mode opentelemetry it does nothing.
func (t *Tracer) Open(env *infer.Envelope) {
	if t.deps.Spans == nil || env.Header == nil {
		return
	}
	x := t.flags.Export
	var from infer.SpanContext
	if !x.NoParent {
		from, _ = parent(env.Header(headerParent))
	}
	env.Span = from
	if from.Trace != (infer.TraceID{}) {
		env.State = carried(env.Header(headerState), maxState)
	}
	v := t.view.Load()
	e := v.of(env.Model)
	switch {
	case e.settings.Level == 0:
		env.Span.Sampled = false
		return
	case from.Trace != (infer.TraceID{}) && !x.OwnRoot:
		if from.Sampled {
			t.begin(env, e, from)
		}
		return
	case env.Action == infer.ActionModelRepository && e.settings.Rate != 0 && x.Root != RootOff:
		t.begin(env, e, from)
		return
	case env.Action == infer.ActionInference && (env.Model != "" || len(v.models) == 0):
		t.root(env, v, e, from)
	}
	if env.Trace == nil {
		env.Span.Sampled = false // whatever the caller says
	}
}

// root decides where the caller's decision does not count. A rate that was set while the
// server runs goes before the sampler of the environment.
func (t *Tracer) root(env *infer.Envelope, v *view, e *epoch, from infer.SpanContext) {
	how := t.flags.Export.Root
	if (e.own|v.global.own)&fieldRate != 0 {
		how = RootRate
	}
	switch how {
	case RootOff:
		return
	case RootRate:
		if !e.next() {
			return
		}
	case RootRatio:
		if from.Trace == (infer.TraceID{}) {
			from.Trace = infer.NewTraceID()
		}
		if !within(from.Trace, t.flags.Export.Ratio) {
			return
		}
	}
	t.begin(env, e, from)
}

// within says that a trace belongs to the ratio, in the way of OpenTelemetry's SDKs, so
// that all services decide alike.
func within(id infer.TraceID, ratio float64) bool {
	return ratio >= 1 || binary.BigEndian.Uint64(id[8:])>>1 < uint64(ratio*(1<<63))
}

// begin makes the record of a sampled call.
func (t *Tracer) begin(env *infer.Envelope, e *epoch, from infer.SpanContext) {
	record := &struct { // one allocation
		call   infer.TraceCall
		family infer.TraceFamily
	}{}
	call, f := &record.call, &record.family
	call.Parent = from.Span
	call.Span = infer.SpanContext{Trace: from.Trace, Span: infer.NewSpanID(), Sampled: true}
	if call.Span.Trace == (infer.TraceID{}) {
		call.Span.Trace = infer.NewTraceID()
	}
	call.State = env.State
	if env.Header != nil && len(t.flags.Export.Baggage) > 0 {
		call.Baggage = carried(env.Header(headerBaggage), maxBaggage)
	}
	f.Level, f.IDs, f.Sink = infer.TraceTimestamps, &t.ids, t.sink // tensors are none of a span's
	f.Open(call)
	env.Span, env.Trace = call.Span, f
}

// Begin is the trace of a client's request at its model; nil: it is not sampled. Who
// gets a trace ends it.
func (t *Tracer) Begin(req *infer.Request) *infer.Trace {
	if t.deps.Spans == nil {
		return t.Sample(req.Model, req.ID)
	}
	env := req.Envelope
	if env == nil {
		return nil
	}
	if v := t.view.Load(); env.Trace == nil && env.Model == "" && len(v.models) > 0 && env.Span.Trace == (infer.TraceID{}) {
		// the body alone named the model, and some model has settings of its own
		if e := v.of(req.Model); e.settings.Level != 0 {
			t.root(env, v, e, env.Span)
		}
	}
	if env.Trace == nil {
		return nil
	}
	return env.Trace.Begin(req.Model, req.ID)
}

// Admitted takes down that identity and limits have decided on a sampled call; err is
// their refusal.
func (t *Tracer) Admitted(env *infer.Envelope, err error) {
	env.Trace.Call.Admitted, env.Trace.Call.Refused = infer.Now(), err
}

// Close ends the record of a call. What end holds is valid until it returns.
func (t *Tracer) Close(env *infer.Envelope, end *infer.End) {
	if env.Trace == nil {
		return
	}
	c := env.Trace.Call
	c.Ended = infer.Now()
	c.Envelope, c.End = *env, *end
	c.Envelope.Header, c.Envelope.Fields = nil, nil // the call's own memory, which may be another's now
	c.Envelope.Certificate, c.Envelope.Admitted, c.Envelope.Trace = nil, nil, nil
	if r := end.Request; r != nil {
		if c.Envelope.Model == "" {
			c.Envelope.Model = r.Model
		}
		if c.Envelope.RequestID == "" {
			c.Envelope.RequestID = r.ID
		}
	}
	c.End.Request = nil
	env.Trace.Close()
}
