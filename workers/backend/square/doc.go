// Package square is a backend that answers a request as many times as its input says, for
// tests of decoupled models and of statistics of single answers. Its tensors, its model
// parameters and what they do are those of Triton's backend of that name:
//
//   - input IN, INT32 [1]: n.
//   - output OUT, INT32 [1]: n, in each of n answers.
//
// Models may have a batch dimension; a request has one row all the same. With a decoupled
// transaction policy an end without outputs comes behind the answers. Without one the first
// answer is the only one, and 0 is an error.
//
// Parameters of the model config, each a number; others leave it at 0:
//
//   - CUSTOM_INFER_DELAY_NS, CUSTOM_OUTPUT_DELAY_NS: nanoseconds before each answer.
//   - CUSTOM_CANCEL_DELAY_NS: nanoseconds from seeing that a request is cancelled to its end.
//   - CUSTOM_EMPTY_COUNT: how many of the last answers have no outputs; they are not sent.
//   - CUSTOM_FAIL_COUNT: how many before those are errors.
//
// Every request is answered by a goroutine of its own after Execute has returned, one batch
// beside the other. An Instance is for one goroutine; the rest may be called by any number.
package square
