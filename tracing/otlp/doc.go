// Package otlp makes OpenTelemetry spans of sampled calls and sends them to a collector.
//
// An Exporter is tracing's Spans: it takes the records of calls that have ended, through
// a bounded queue, to Run, the one goroutine that encodes and sends. A full queue, and a
// collector that does not answer, lose calls, which are counted, and never hold one up.
//
// The spans are written as OTLP at once, field by field, into one buffer for each
// resource; the official client carries them, over gRPC or HTTP, with its retries,
// compression, TLS and headers. The way through the SDK's spans and the message types
// costs some ten times of it (docs/performance.md).
//
// Source: opentelemetry-proto (trace/v1/trace.proto) for the form, the original's tracer
// for the names of spans and their triton. attributes, OpenTelemetry's semantic
// conventions for the others.
package otlp
