package infer

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// TraceID names one trace; the zero value is none.
// Source: W3C Trace Context, trace-id.
type TraceID [16]byte

// String is the identifier in 32 hexadecimal digits.
func (id TraceID) String() string { return hex.EncodeToString(id[:]) }

// SpanID names one span of a trace; the zero value is none.
// Source: W3C Trace Context, parent-id.
type SpanID [8]byte

// String is the identifier in 16 hexadecimal digits.
func (id SpanID) String() string { return hex.EncodeToString(id[:]) }

// NewTraceID makes a random identifier.
func NewTraceID() (id TraceID) {
	for id == (TraceID{}) {
		binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

// NewSpanID makes a random identifier.
func NewSpanID() (id SpanID) {
	for id == (SpanID{}) {
		binary.LittleEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// SpanContext is a place in a trace. The zero value is none.
type SpanContext struct {
	Trace   TraceID
	Span    SpanID
	Sampled bool // its spans are exported
}

// SpanContext is where the request stands in its trace: the span of its call; for a
// step of an ensemble that of the call which the ensemble answers. It is the zero value
// where nobody traces, and for a request that is not sampled and whose caller named no
// trace. It is known when the request is recorded at its model.
func (r *Request) SpanContext() SpanContext {
	switch {
	case r.Envelope != nil:
		return r.Envelope.Span
	case r.Trace != nil && r.Trace.family.Call != nil:
		return r.Trace.family.Call.Span
	}
	return SpanContext{}
}

// TraceState is the tracestate that came with the trace of SpanContext; "": none.
func (r *Request) TraceState() string {
	switch {
	case r.Envelope != nil:
		return r.Envelope.State
	case r.Trace != nil && r.Trace.family.Call != nil:
		return r.Trace.family.Call.State
	}
	return ""
}

// TraceCall is what spans tell of a sampled call besides its requests. The pipeline
// sets it: the first part when the call opens, the second when it has ended.
type TraceCall struct {
	Span     SpanContext // of the call itself
	Parent   SpanID      // zero: the trace begins here
	State    string      // tracestate of the caller, not parsed; "": none
	Baggage  string      // of the caller, not parsed; "": none, or nobody asks for it
	Admitted int64       // Now when identity and limits had decided; 0: they had not
	Refused  error       // what they decided; nil: the call went on

	Envelope Envelope // without its Header and Fields
	End      End      // without its Request
	Ended    int64
}

// maxLinks bounds the requests that a batch's span names.
// Source: OTEL_SPAN_LINK_COUNT_LIMIT's default in the OpenTelemetry specification.
const maxLinks = 128

// maxBatches bounds the batches that a trace names: an iterative sequence may be
// executed without end.
const maxBatches = 64

// TraceBatch is one execution with requests in it whose spans are exported. It lies in
// the trace of the first of them, and names the others. A scheduler makes it (Join),
// fills it in and ends it. Its methods do nothing on nil.
type TraceBatch struct {
	Span  SpanContext
	Links []SpanContext // of the requests at their models; the first is the parent

	ID       uint64
	Instance string // "": not known
	Worker   string // "": not known
	Attempt  int
	Requests int
	Rows     int
	Started  int64
	Ended    int64
	Compute  ComputeTimes
	Err      error

	families []*TraceFamily // that wait for its end

	// Memory for small batches, in one allocation.
	roomLinks    [2]SpanContext
	roomFamilies [2]*TraceFamily
}

// Join takes the request of t into the batch b, and makes b where there is none. It
// gives b back, nil where no spans are made of t. The families of the requests are not
// complete before b has ended. t must not have ended.
func (b *TraceBatch) Join(t *Trace) *TraceBatch {
	if t == nil || t.family.Call == nil || len(t.Batches) >= maxBatches {
		return b
	}
	f := t.family
	if b == nil {
		b = &TraceBatch{Span: SpanContext{Trace: f.Call.Span.Trace, Span: NewSpanID(), Sampled: true}}
		b.Links, b.families = b.roomLinks[:0], b.roomFamilies[:0]
	}
	if len(b.Links) >= maxLinks {
		return b
	}
	b.Links = append(b.Links, SpanContext{Trace: f.Call.Span.Trace, Span: t.Span, Sampled: true})
	b.families = append(b.families, f)
	t.Batches = append(t.Batches, b)
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	return b
}

// Done ends the batch, once. Nothing of it changes afterwards.
func (b *TraceBatch) Done() {
	if b == nil {
		return
	}
	families := b.families
	b.families = nil
	for _, f := range families {
		f.done()
	}
}
