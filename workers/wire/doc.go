// Package wire is the binary form of a batch and of its results between gateway and
// worker, and of the inferences that models ask their gateway for, and their answers: a
// descriptor that names tensors by segments of an arena (on one host) or of the bytes that
// follow it (in messages). Both ends of the local lane and of the gRPC streams use it. Decoders trust nothing: counts, ranks, offsets and
// lengths are checked before anything is allocated.
//
// It has no goroutines and no state.
package wire
