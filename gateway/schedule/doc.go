// Package schedule is what all schedulers share: the Scheduler interface that the
// pipeline calls, the queue of waiting requests, the hand-over to instances, and the
// alarm that keeps delays shorter than Go's timers can.
//
// What is decided when is in plain state machines without goroutine, clock or I/O
// (packages direct and dynamic); whoever has an event (a caller that queues, the
// goroutine that brings a result, the alarm) takes the scheduler's lock, tells the
// state machine, carries out its decisions, and lets go. No lock is held while a
// request is answered.
//
// Where what is: internal/queue holds the pure state machine that both schedulers
// share, internal/drive the driver around it and the layout of batches in memory;
// build picks the scheduler of a model config. Priorities will be several lines in
// the queue, each with its QueuePolicy.
//
// Answers reach callers in the order that preserve_ordering asks for when they are
// handed over; each caller then sends its own, on its own goroutine.
//
// When a worker ends, its stateless requests that have had no answer are tried once
// more, before all others, one by one: a request under which two workers ended is
// refused and logged, and those that shared its first batch are not drawn in.
package schedule
