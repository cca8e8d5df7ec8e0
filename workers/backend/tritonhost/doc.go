// Package tritonhost runs Triton's own backends as they are: shared libraries libtriton_<name>.so, written against the
// C interface TRITONBACKEND (version 1.19). They link a library of the name libtritonserver.so, which is the one in
// library/, and reach the worker through that alone.
//
// A backend's fault ends its process. So Info says OwnProcess: a gateway has the models of each such backend in a worker
// process of their own, starts it again, and has requests without an answer executed once more.
//
// An instance's batches are executed by its goroutine, in the backend. Backends answer from any of their threads; those
// never enter Go: the library keeps what they sent, and the instance's goroutine, or for batches that were kept one more
// (pump), takes it from there. Lock order: instance.mu, then what a batch's methods lock.
package tritonhost
