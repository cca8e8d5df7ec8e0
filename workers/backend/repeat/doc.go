// Package repeat is a backend that answers a request any number of times, with delays:
// for tests of streams, of cancellation, and of everything else that decoupled models
// need. Its tensors are those of the original's repeat backend:
//
//   - input IN, INT32, one dimension: one answer for each element, also none.
//   - input DELAY, UINT32, as many elements: milliseconds before each answer.
//   - input WAIT, UINT32 [1]: milliseconds for which the instance is busy, if the request has
//     no final answer before.
//   - output OUT, INT32 [1]: the element; output IDX, UINT32 [1]: its position.
//
// Models have no batch dimension. With a decoupled transaction policy a request has all its
// answers, and an end without outputs behind them, not before WAIT is over. Without one the
// first answer is the only one, and no element is an error.
//
// Answers that come at once come from Execute. Others come from a goroutine for each request,
// and the instance takes its next one after WAIT: some 1000 requests may be open at a time.
//
// Parameters of a request:
//
//   - fail_after: after so many answers the request fails with code Internal.
//   - crash_after: after so many answers the process ends as by kill -9, where the
//     model config's parameter allow_crash is "true".
//   - final: true marks the last answer as final, in place of an end without outputs.
//   - padding: each answer has a response parameter padding of so many characters.
//   - echo: each answer has the request's other parameters as response parameters.
//
// Where the model config's parameter release_inputs is "true", inputs are given back while answers
// are still to come, up to the gateway (backend.Open.ReleaseAll).
//
// Delays end early when the request is cancelled, which then fails. An Instance is for
// one goroutine; the rest may be called by any number.
package repeat
