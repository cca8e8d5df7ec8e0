package otlp

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// The fields of message Span and of what lies in it.
// Source: opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto.
const (
	scopeSpans = 2 // of ScopeSpans

	spanTrace      = 1
	spanID         = 2
	spanState      = 3
	spanParent     = 4
	spanName       = 5
	spanKind       = 6
	spanStart      = 7
	spanEnd        = 8
	spanAttributes = 9
	spanEvents     = 11
	spanLinks      = 13
	spanStatus     = 15
	spanFlags      = 16

	linkTrace = 1
	linkSpan  = 2
	linkFlags = 6

	eventTime = 1
	eventName = 2

	statusMessage = 2
	statusCode    = 3

	keyName  = 1
	keyValue = 2

	valueString = 1
	valueInt    = 3
)

// The kinds of spans that there are here.
const (
	kindInternal = 1
	kindServer   = 2
)

// The flags of spans and links. Source: enum SpanFlags.
const (
	flagSampled = 0x001
	flagKnown   = 0x100 // it is known whether the parent is remote
	flagRemote  = 0x200
)

// statusError is STATUS_CODE_ERROR.
const statusError = 2

// maxText bounds the texts of attributes; clients choose some of them.
const maxText = 1024

// span writes one message Span. Its fields are appended in any order; done puts it
// behind the others of its buffer.
type span struct{ b []byte }

// start begins the span; times are Unix nanoseconds.
func (s *span) start(in *infer.SpanContext, parent infer.SpanID, name string, kind byte, from, to int64) {
	b := s.b[:0]
	b = append(append(b, spanTrace<<3|2, 16), in.Trace[:]...)
	b = append(append(b, spanID<<3|2, 8), in.Span[:]...)
	if parent != (infer.SpanID{}) {
		b = append(append(b, spanParent<<3|2, 8), parent[:]...)
	}
	b = text(b, spanName, name)
	b = append(b, spanKind<<3, kind)
	b = protowire.AppendFixed64(append(b, spanStart<<3|1), uint64(from))
	s.b = protowire.AppendFixed64(append(b, spanEnd<<3|1), uint64(max(from, to)))
}

// flags says that the span is sampled, and where its parent is.
func (s *span) flags(remote bool) {
	v := uint32(flagSampled | flagKnown)
	if remote {
		v |= flagRemote
	}
	s.b = protowire.AppendFixed32(protowire.AppendTag(s.b, spanFlags, protowire.Fixed32Type), v)
}

// str is an attribute; an empty value is none.
func (s *span) str(key, v string) {
	if v != "" {
		s.b = attribute(s.b, spanAttributes, key, v)
	}
}

// num is an attribute.
func (s *span) num(key string, v int64) {
	value := 1 + protowire.SizeVarint(uint64(v))
	b := protowire.AppendVarint(append(s.b, spanAttributes<<3|2), uint64(2+len(key)+2+value)) // keys are short
	b = append(append(b, keyName<<3|2, byte(len(key))), key...)
	b = append(b, keyValue<<3|2, byte(value), valueInt<<3)
	s.b = protowire.AppendVarint(b, uint64(v))
}

// event is a moment of the span.
func (s *span) event(name string, at int64) {
	b := append(s.b, spanEvents<<3|2, byte(9+2+len(name)))
	b = protowire.AppendFixed64(append(b, eventTime<<3|1), uint64(at))
	s.b = append(append(b, eventName<<3|2, byte(len(name))), name...)
}

// link points at another span, in this trace or in another.
func (s *span) link(to *infer.SpanContext) {
	b := append(s.b, spanLinks<<3|2, 18+10+5)
	b = append(append(b, linkTrace<<3|2, 16), to.Trace[:]...)
	b = append(append(b, linkSpan<<3|2, 8), to.Span[:]...)
	s.b = protowire.AppendFixed32(append(b, linkFlags<<3|5), flagSampled|flagKnown)
}

// failed gives the span the status of an error.
func (s *span) failed(message string) {
	message = clean(message)
	n := 2
	if message != "" {
		n += 1 + protowire.SizeBytes(len(message))
	}
	b := protowire.AppendVarint(append(s.b, spanStatus<<3|2), uint64(n))
	if message != "" {
		b = protowire.AppendString(append(b, statusMessage<<3|2), message)
	}
	s.b = append(b, statusCode<<3, statusError)
}

// done appends the span to the spans of a ScopeSpans message.
func (s *span) done(to []byte) []byte {
	return protowire.AppendBytes(append(to, scopeSpans<<3|2), s.b)
}

func text(b []byte, field byte, v string) []byte {
	if v = clean(v); v == "" {
		return b
	}
	return protowire.AppendString(append(b, field<<3|2), v)
}

// attribute appends a KeyValue with a string as a field.
func attribute(b []byte, field byte, key, v string) []byte {
	v = clean(v)
	value := 1 + protowire.SizeBytes(len(v))
	b = protowire.AppendVarint(append(b, field<<3|2), uint64(1+protowire.SizeBytes(len(key))+1+protowire.SizeBytes(value)))
	b = protowire.AppendString(append(b, keyName<<3|2), key)
	b = protowire.AppendVarint(append(b, keyValue<<3|2), uint64(value))
	return protowire.AppendString(append(b, valueString<<3|2), v)
}

// clean is a text that a collector takes: short, and UTF-8. One text that is not would
// lose all spans that it is sent with.
func clean(v string) string {
	if len(v) > maxText {
		v = v[:maxText]
	}
	if utf8.ValidString(v) {
		return v
	}
	return strings.ToValidUTF8(v, "\ufffd")
}
