// Package schedule is what all schedulers share: the Scheduler interface that the
// pipeline calls, the queue of waiting requests, the hand-over to instances, and the
// alarm that keeps delays shorter than Go's timers can.
//
// What is decided when is in plain state machines without goroutine, clock or I/O
// (packages direct and dynamic); whoever has an event (a caller that queues, the
// goroutine that brings a result, the alarm) takes the scheduler's lock, tells the
// state machine, carries out its decisions, and lets go. No lock is held while a
// request is answered.
package schedule
