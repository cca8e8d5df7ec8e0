package tracing

import (
	"encoding/hex"

	"github.com/sluice-serve/sluice/infer"
)

// The bounds of what is kept of a caller's headers.
// Source: W3C Trace Context (tracestate) and W3C Baggage.
const (
	maxState   = 512
	maxBaggage = 8192
)

// parent reads a traceparent header; false where there is none that can be understood,
// and then a trace begins. It allocates nothing.
// Source: W3C Trace Context, also of versions to come: their first four fields are those
// of version 00.
func parent(header string) (c infer.SpanContext, ok bool) {
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(header) < length || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return c, false
	}
	var version, flags [1]byte
	if !digits(version[:], header[:2]) || !digits(c.Trace[:], header[3:35]) || !digits(c.Span[:], header[36:52]) ||
		!digits(flags[:], header[53:55]) {
		return infer.SpanContext{}, false
	}
	switch {
	case version[0] == 0xff, c.Trace == (infer.TraceID{}), c.Span == (infer.SpanID{}):
		return infer.SpanContext{}, false
	case len(header) == length:
	case version[0] == 0, header[length] != '-':
		return infer.SpanContext{}, false
	}
	c.Sampled = flags[0]&1 != 0
	return c, true
}

// digits decodes lower-case hexadecimal digits.
func digits(dst []byte, src string) bool {
	for i := range src {
		if c := src[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	var text [32]byte
	n := copy(text[:], src)
	_, err := hex.Decode(dst, text[:n])
	return err == nil
}

// carried is a header that is kept beyond the call's opening; "" where it is too long.
func carried(header string, most int) string {
	if len(header) > most {
		return ""
	}
	return header
}
