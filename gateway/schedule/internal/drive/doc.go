// Package drive carries out what the pure schedulers decide. A Driver has no
// goroutine: whoever has an event (a caller that queues or leaves, the goroutine that
// delivers a result, the alarm) takes its lock, tells the queue.Core, asks it for
// batches, lets go of the lock, and posts them.
//
// Order within one event: the next batch is posted first, then statistics are told,
// then callers are woken. Do and Start are one path: both begin an item, give it a sink, and
// enqueue it, and deliver cuts and sends its answers (deliver.go). Do's sink is a waiter, whose
// caller delivers when it is woken (await.go); to any other sink, the goroutine that handed an
// answer over delivers it (start.go).
//
// Locks: Driver.mu before item.mu, and both before those of the memory, the clock and the
// limiter. Neither is held while an Executor, an Observer or a caller's send runs, nor
// while other models hear of what the limiter granted them (limit.go).
//
// A result may free its instance while its batch stays open (free.go); what a batch is to its
// instance, and what to its callers, ends apart then.
//
// A panic of what is called under the lock ends what waits with an error, and the model
// goes on with a new core (renew.go).
//
// Inputs are laid out when a request is queued (place.go): small ones are copied to
// rows of a slot that requests of equal shapes share, so that a batch is one segment
// for each input; what lies in the shared memory already is named where it is; large
// rows from elsewhere get a block of their own before the lock is taken.
package drive
