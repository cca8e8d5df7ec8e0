// Package ov is OpenVINO's runtime: the shared library of its C API, opened at run time, models that it reads and compiles, and
// requests that infer.
//
// A Library and a Compiled may be used by any goroutine, a Request by one at a time, but for Terminate. Memory that a
// Request is given is the caller's; it is read and written during Run alone.
package ov
