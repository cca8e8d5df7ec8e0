package tracing

import (
	"testing"

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

// What is understood means the same when it is written out again.
func FuzzParent(f *testing.F) {
	f.Add("00-" + traceText + "-" + spanText + "-01")
	f.Add("cc-" + traceText + "-" + spanText + "-01-x")
	f.Fuzz(func(t *testing.T, header string) {
		c, ok := parent(header)
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
