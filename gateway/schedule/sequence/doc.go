// Package sequence is the sequence batcher: requests with the same correlation ID are
// executed in order, one at a time, and on the same instance.
//
// Correlation IDs are told apart by their callers' scope, as a rule the tenant; the model is
// told the ID alone. A sequence begins with a request that says START and ends with one
// that says END, or when nothing of it came for the config's idle time, or when the caller
// of one of its waiting requests leaves. While it lives it owns a slot of one instance.
// Those that find none stand in the backlog, for a bounded time, and get free slots in
// turns: of the callers who wait, the one that has fewest is next.
//
// With the direct strategy a slot is a row of the instance's batches, and rows whose
// sequence has no request are null requests, whose READY control is false and whose inputs
// are zeros. With the oldest strategy a slot only makes a sequence a candidate: the next
// requests of the candidates are batched as the dynamic batcher does it.
//
// Everything about sequences lives here: a worker sees ordinary inputs. The Stage adds
// the control tensors and the implicit state to a batch and takes the new state from
// its outputs into memory of the gateway, so that a sequence of a model with implicit
// state outlives its worker, and a request that changed no state is tried again. The
// state of other stateful models is lost with the worker; their sequences end then.
//
// Core is pure: no goroutine, clock, lock or I/O. Its caller, a drive.Driver, serializes
// it and tells it the time.
package sequence
