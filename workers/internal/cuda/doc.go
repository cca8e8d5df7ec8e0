// Package cuda reads and writes device memory: of other processes, by the handles that they
// export, and of its own (Heap). It stands on the CUDA driver alone, whose library is loaded when
// the first region of device memory is opened, or the first model is loaded whose backend takes
// such memory: nothing is linked, and without the library, or without cgo, a region is
// refused with a text that says so.
//
// All calls work in the primary context of the worker's one device, which ONNX Runtime's
// CUDA provider uses as well. They may come from any thread: each makes the context current
// and puts the thread's own back. A Device is safe for concurrent use.
package cuda
