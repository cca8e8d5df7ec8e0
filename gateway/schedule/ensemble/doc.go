// Package ensemble is the scheduler of models that are made of other models: a request
// passes through a graph of steps, which are tied by the names of their tensors. A step
// starts as soon as its inputs are there, beside others that are ready.
//
// Graph and run are plain state machines: which steps are needed for the outputs that
// were asked for, which may start, which answers can be sent. Scheduler drives them. A
// chain of steps runs on the caller's goroutine; only what runs beside something else
// gets one of its own, and Do returns when all of them have ended.
//
// Tensors go from step to step as views on the memory that the step before answered
// into; that memory is held until the last step that reads it has ended.
//
// A decoupled step may answer many times. Each answer begins a frame: the steps behind
// run once for each frame, and the ensemble's answers leave in the order of the frames.
// The frames under way at one time are bounded, so a slow step holds back the one in
// front of it.
//
// Locks: Scheduler.mu guards the list of requests, runner.mu one request's progress.
// Neither is held while a step runs or an answer is sent.
package ensemble
