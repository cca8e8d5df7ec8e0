// Package tracing is the trace extension: its settings, globally and for each model,
// the decision which request is sampled, and the JSON files that traces go to.
//
// A Tracer is asked by the pipeline (On, Sample) and by control (Settings, Update), from
// any goroutine. What was taken down of a request is an infer.Trace, which lives with
// the request; once it has ended, it passes a bounded queue to Run, the one goroutine
// that encodes and writes. A full queue loses the trace, which is counted, and never
// holds a request up.
//
// Lock order: Tracer.mu before epoch.mu; neither is held while anything is written.
//
// Source: the trace extension of the v2 protocol, and the original's tracer for the
// form of the files.
package tracing
