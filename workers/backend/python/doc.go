// Package python executes models that are Python classes: the backend that Triton calls
// python, and those that are a folder with a model.py (Info.Runtimes). Each instance has a
// process of its own, which runs package runner's source and the model's; what the two say
// to each other is package channel's. docs/0025-python-channel.md is the design.
//
// An instance is used by its one goroutine (package backend), which writes commands and
// waits for results in the system call. Of each process one goroutine reads events, and one
// waits for its end and starts the next one. Locks are taken in this order: a batch's, then
// slots'; none is held while the process is waited for.
package python
