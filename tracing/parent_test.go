package tracing

import (
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-serve/sluice/infer"
)

const (
	traceText = "0af7651916cd43dd8448eb211c80319c"
	spanText  = "b7ad6b7169203331"
)

func TestParent(t *testing.T) {
	for _, row := range []struct {
		header      string
		ok, sampled bool
	}{
		{"00-" + traceText + "-" + spanText + "-01", true, true},
		{"00-" + traceText + "-" + spanText + "-00", true, false},
		{"00-" + traceText + "-" + spanText + "-03", true, true}, // flags to come
		{"cc-" + traceText + "-" + spanText + "-01-more", true, true},
		{"cc-" + traceText + "-" + spanText + "-01", true, true},
		{"", false, false},
		{"00", false, false},
		{"00-" + traceText + "-" + spanText + "-01-more", false, false}, // not in this version
		{"cc-" + traceText + "-" + spanText + "-01.more", false, false},
		{"ff-" + traceText + "-" + spanText + "-01", false, false},
		{"00-00000000000000000000000000000000-" + spanText + "-01", false, false},
		{"00-" + traceText + "-0000000000000000-01", false, false},
		{"00-0AF7651916CD43DD8448EB211C80319C-" + spanText + "-01", false, false},
		{"00-" + traceText + "-" + spanText + "-0g", false, false},
		{"00_" + traceText + "-" + spanText + "-01", false, false},
		{" 00-" + traceText + "-" + spanText + "-01", false, false},
	} {
		c, ok := parent(row.header)
		if ok != row.ok || c.Sampled != row.sampled {
			t.Errorf("%q: %v, sampled %v; want %v, %v", row.header, ok, c.Sampled, row.ok, row.sampled)
		}
		if ok && (c.Trace.String() != traceText || c.Span.String() != spanText) || !ok && c != (infer.SpanContext{}) {
			t.Errorf("%q: got %s %s", row.header, c.Trace, c.Span)
		}
	}
}

// What is understood means the same when it is written out again, and is what
// OpenTelemetry's own propagator understands, but for two things in version 00: flags to
// come, which it refuses, and the specification asks to pass over; and a dash at the end,
// which it takes, and the specification has not.
func FuzzParent(f *testing.F) {
	for _, head := range []string{"00-" + traceText, "cc-" + traceText, "ff-" + traceText, "00-00000000000000000000000000000000", "fe-"} {
		for _, tail := range []string{"-" + spanText + "-01", "-" + spanText + "-00", "-" + spanText + "-03", "-" + spanText + "-ff", "-" + spanText + "-01-x",
			"-" + spanText + "-01-", "-0000000000000000-01", "-" + spanText + "-1", "-" + spanText + "-0G", "-" + spanText, "-" + spanText + "-01 "} {
			f.Add(head + tail)
		}
	}
	f.Fuzz(func(t *testing.T, header string) {
		c, ok := parent(header)
		theirs := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": header}))
		switch {
		case ok != theirs.IsValid():
			flags, err := strconv.ParseUint(header[min(len(header), 53):], 16, 8)
			if toCome, dash := ok && err == nil && flags > 3, !ok && len(header) == 56 && header[55] == '-'; header[:2] != "00" || !toCome && !dash {
				t.Errorf("%q: understood %v, by OpenTelemetry %v", header, ok, theirs.IsValid())
			}
		case ok && (c.Trace != infer.TraceID(theirs.TraceID()) || c.Span != infer.SpanID(theirs.SpanID()) || c.Sampled != theirs.IsSampled()):
			t.Errorf("%q: got %v, OpenTelemetry %v", header, c, theirs)
		}
		if !ok {
			if c != (infer.SpanContext{}) {
				t.Errorf("%q is not understood, and gives %v", header, c)
			}
			return
		}
		if got := header[:3] + c.Trace.String() + "-" + c.Span.String(); got != header[:52] {
			t.Errorf("%q: got %q", header, got)
		}
	})
}
