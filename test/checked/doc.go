// Package checked asks servers for what is known beforehand and says whether the answer is
// right: requests of integer tensors over HTTP and gRPC, and the comparison of what came
// back. The soak (test/soak) and the callers of the fault trials (test/callers) use it.
// Its functions keep no state and are for many goroutines.
package checked
