// Package infer is the vocabulary that every other package shares: requests,
// responses, tensors, datatypes, batches, counted memory and the one error type a
// client can see. It does no I/O and imports nothing of this project.
//
// A Request belongs to the goroutine that decodes it until it is handed to
// pipeline.Start; from validation on it is read-only. Its tensors are views: on the
// body that arrived, on an arena, or on a shared-memory region. The memory under
// them is counted (Buffer): the front end holds one reference, a batch in flight
// another, so a caller may leave while an instance still reads.
package infer
