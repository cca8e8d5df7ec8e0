// Package ratelimit shares resources between the instances of all models: an instance
// whose batch needs a resource begins it when that is granted. Resources are names with
// counts that only the models' owners know the meaning of; there are as many of each as
// --rate-limit-resource says, or else as the neediest instance of the loaded models
// needs. It limits executions, not callers: those are the business of admission.
//
// The decisions are those of a plain state machine (machine.go) without lock, clock or
// I/O. A Limiter is a lock around one that the models of a gateway share; a Member is
// one model version's view of it, which fits schedule.Limiter.
//
// Who goes first: every instance has a count of its executions times its priority, so
// that one of priority 2 gets half the turns of one of priority 1. The lowest count that
// waits is next; what it needs and can't have yet is kept for it, while those behind it
// may use what it doesn't need. An instance that was idle takes part from the present
// count on: it makes up for nothing, and what was loaded last does not shut the others
// out. The original keeps plain counts, and lets nobody pass the first in line.
//
// Lock order: a scheduler's lock before the Limiter's. No function is called with the
// Limiter's lock held.
package ratelimit
