// Package ort is the thin layer over ONNX Runtime's C API: it opens the shared library
// at run time, makes sessions, and runs them with one cgo call for each batch. It knows
// nothing of models, configurations or workers; workers/backend/onnxruntime and the
// benchmark of the bare runtime call it.
//
// It is built only with the tag `onnxruntime` and cgo, and needs the C header of the API
// on the include path (the Makefile takes it from the module that carries it). Nothing
// links against the library: one binary serves the CPU's and the GPU's build of it.
//
// A Library and its Sessions may be used by several goroutines. A Call belongs to one
// goroutine, but for Terminate. Sessions are closed before their Library, Calls before
// their Session. ONNX Runtime never calls back into Go: its log lines come through a
// pipe, which one goroutine of the Library reads until Close.
package ort
