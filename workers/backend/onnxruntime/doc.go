// Package onnxruntime is the backend that executes ONNX models with ONNX Runtime, over
// the C layer in package ort. A worker makes it with New and calls it as backend.Backend.
//
// # Build
//
// It is built with the tag `onnxruntime`, with cgo, and with the C header on the include
// path. Without the tag the package still builds, and New makes a backend that loads
// nothing and says why (backend.Info.Unavailable).
//
// # Threads
//
// ONNX Runtime uses no more threads than the instance groups ask for. An instance's own
// thread computes, and by default nothing else does: one intra-op thread, one inter-op
// thread, no spinning. A model that wants more says so (intra_op_thread_count,
// inter_op_thread_count, or the options of the same names for all models).
//
// # Sessions
//
// ONNX Runtime may run one session on several threads at once. CPU instances of a model
// version therefore share one session where they have no threads beside their own: the
// weights and their prepacked copies are held once, and nothing else differs. With more
// threads each instance gets a session with a pool of its own, since a shared pool would
// give every instance less than it asked for; the parameter
// share_session_between_instances decides otherwise, as in the original. ONNX Runtime's
// container for prepacked weights is not used: it shares only initializers that the
// caller hands over itself, not those of a model file. GPU instances never share.
//
// # Memory
//
// Inputs are read where they lie. Outputs whose shape is known before the run (from the
// model's and the configuration's dimensions, the batch's rows and dimensions that the
// model gives the same name in an input) are written by ONNX Runtime into the response
// arena; others are allocated by it and copied there once. A model whose outputs turn
// out otherwise than declared is run again, and from then on always in the second way.
//
// # Privacy
//
// The official builds of ONNX Runtime report what they load to their maker, from an
// identity that they write to the home folder. Package ort turns that off before the
// library is opened; a test looks at the home folder.
//
// # Concurrency
//
// One goroutine of the backend looks for long runs whose requests were all cancelled and
// ends them; it sleeps while nothing runs. Locks: watch.mu before instance.mu.
package onnxruntime
