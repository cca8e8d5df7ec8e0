// Package identity is a backend that returns its inputs: for tests, benchmarks and
// measurements of everything around a model.
//
// An output takes the input of its name with OUTPUT for INPUT (OUTPUT0 takes INPUT0),
// or where there is none the input of its position in the config. All datatypes work
// and shapes are kept. Where the worker allows it a large input of a request that is executed
// by itself is named as its output, and not copied. Parameters of the model config:
//
//   - execute_delay_ms: how long an execution takes at least, in milliseconds, a
//     decimal. The name is that of the original's identity backend.
//   - creation_delay_ms: how long the making of an instance takes at least.
//   - allow_crash: "true" lets the request parameter crash end the process.
//
// Parameters of a request:
//
//   - delay_ms: as execute_delay_ms, where it is longer.
//   - fail: this text is the request's error, of code Internal.
//   - crash: true ends the process as kill -9 does, where the config allows it.
//   - iterations: how often the request is executed, where the config has
//     iterative_sequence; a decoupled model answers it each time.
//
// With the option device-memory=true an instance on a GPU takes inputs in device memory, and
// makes its outputs there if it gets such memory, but for BYTES.
//
// A delay ends early once all requests of the batch are cancelled; they then fail.
// An Instance is for one goroutine; the rest may be called by any number.
package identity
