//go:build onnxruntime && cgo

package ort

/*
#cgo noescape sl_run
#cgo nocallback sl_run
#cgo noescape sl_release_outputs
#cgo nocallback sl_release_outputs
#cgo noescape sl_strings
#cgo nocallback sl_strings
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// MaxRank is the most dimensions of a tensor.
const MaxRank = C.SL_MAX_RANK

// Call runs a session again and again without allocating. Its use is: Reset, SetInput
// and SetOutput for each tensor, Run, Output for those that ONNX Runtime allocated,
// Release.
type Call struct {
	c       *C.sl_call
	in, out []C.sl_tensor // c's arrays
	pinner  runtime.Pinner
	empty   unsafe.Pointer // stands for the data of tensors without elements
}

// NewCall makes a Call; entries are run configuration entries for all its runs.
func (s *Session) NewCall(entries []Option) (*Call, error) {
	var e C.sl_error
	c := C.sl_call_new(s.lib.c, s.c, s.inNames.c, C.int(s.inNames.n), s.outNames.c, C.int(s.outNames.n), &e)
	if c == nil {
		return nil, failure(&e)
	}
	call := &Call{c: c, empty: C.calloc(1, 64)}
	call.in = unsafe.Slice(c.in, s.inNames.n)
	call.out = unsafe.Slice(c.out, s.outNames.n)
	for _, entry := range entries {
		key, value := C.CString(entry.Key), C.CString(entry.Value)
		rc := C.sl_call_entry(c, key, value, &e)
		C.free(unsafe.Pointer(key))
		C.free(unsafe.Pointer(value))
		if rc != 0 {
			call.Close()
			return nil, failure(&e)
		}
	}
	return call, nil
}

// Close frees the call; nothing of it runs.
func (c *Call) Close() {
	C.free(c.empty)
	C.sl_call_free(c.c)
	c.c, c.in, c.out = nil, nil, nil
}

// Reset begins the next run.
func (c *Call) Reset() { c.c.n_in, c.c.n_out = 0, 0 }

// SetInput adds input index (of Session.Inputs) to the next run. data is read in place
// during Run, so it has the elements' alignment; it is the protocol's form for String.
// count is how many elements shape has.
func (c *Call) SetInput(index int, typ Type, shape []int64, count int64, data []byte) error {
	if int(c.c.n_in) == len(c.in) {
		return &Error{Code: CodeInvalidArgument, Message: fmt.Sprintf("more than the %d inputs of the model", len(c.in))}
	}
	t := &c.in[c.c.n_in]
	if err := c.fill(t, index, typ, shape, data); err != nil {
		return err
	}
	t.count = C.size_t(count)
	c.c.n_in++
	return nil
}

// SetOutput asks the next run for output index (of Session.Outputs). It is written to
// data, which has the size of shape and is not nil; with a nil data ONNX Runtime
// allocates it and typ and shape are not read.
func (c *Call) SetOutput(index int, typ Type, shape []int64, data []byte) error {
	if int(c.c.n_out) == len(c.out) {
		return &Error{Code: CodeInvalidArgument, Message: fmt.Sprintf("more than the %d outputs of the model", len(c.out))}
	}
	t := &c.out[c.c.n_out]
	if data == nil {
		t.index, t.data, t.bytes = C.int32_t(index), nil, 0
	} else if err := c.fill(t, index, typ, shape, data); err != nil {
		return err
	}
	c.c.n_out++
	return nil
}

func (c *Call) fill(t *C.sl_tensor, index int, typ Type, shape []int64, data []byte) error {
	if len(shape) > MaxRank {
		return &Error{Code: CodeInvalidArgument, Message: fmt.Sprintf("%d dimensions, the most is %d", len(shape), MaxRank)}
	}
	t.index, t._type, t.rank = C.int32_t(index), C.int32_t(typ), C.int32_t(len(shape))
	for i, d := range shape {
		t.dims[i] = C.int64_t(d)
	}
	t.bytes = C.size_t(len(data))
	t.data = c.empty
	if len(data) > 0 {
		p := unsafe.Pointer(unsafe.SliceData(data))
		c.pinner.Pin(p) // nothing is done for memory outside of Go's heap
		t.data = p
	}
	return nil
}

// Run runs the session once.
func (c *Call) Run() error {
	rc := C.sl_run(c.c)
	c.pinner.Unpin()
	if rc != 0 {
		return failure(&c.c.error)
	}
	return nil
}

// Repeat is Run n times in one call of C, for measuring ONNX Runtime without Go.
func (c *Call) Repeat(n int) error {
	rc := C.sl_repeat(c.c, C.int(n))
	c.pinner.Unpin()
	if rc != 0 {
		return failure(&c.c.error)
	}
	return nil
}

// Terminate makes a Run on another goroutine end soon with an error, and later ones at
// once until Resume. Any goroutine may call it while the Call is open.
func (c *Call) Terminate() error { return c.terminate(1) }

// Resume undoes Terminate.
func (c *Call) Resume() error { return c.terminate(0) }

func (c *Call) terminate(on C.int) error {
	if rc := C.sl_terminate(c.c, on); rc != 0 {
		return &Error{Code: int(rc), Message: "the run can't be ended"}
	}
	return nil
}

// Output reads the i-th output of the last run, which ONNX Runtime allocated. shape is
// appended to. Data is valid until Release; it is nil for String, see Strings. size is
// the bytes of Data, or what Strings will write.
func (c *Call) Output(i int, shape []int64, elem int64) (typ Type, dims []int64, data []byte, size int64) {
	t := &c.out[i]
	for _, d := range t.dims[:t.rank] {
		shape = append(shape, int64(d))
	}
	typ = Type(t._type)
	if typ == String {
		return typ, shape, nil, 4*int64(t.count) + int64(t.bytes)
	}
	size = int64(t.count) * elem
	if size > 0 {
		data = unsafe.Slice((*byte)(t.data), size)
	}
	return typ, shape, data, size
}

// Strings writes the i-th output, whose type is String, in the protocol's form to to,
// which has the size that Output told.
func (c *Call) Strings(i int, to []byte) error {
	if len(to) == 0 {
		return nil
	}
	if C.sl_strings(c.c, C.int(i), unsafe.Pointer(unsafe.SliceData(to))) != 0 {
		return failure(&c.c.error)
	}
	return nil
}

// Release frees the outputs that ONNX Runtime allocated in the last run.
func (c *Call) Release() { C.sl_release_outputs(c.c) }
