//go:build cgo

package ov

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Request infers, one run at a time.
type Request struct {
	c       unsafe.Pointer
	in, out []C.slo_tensor // memory of C's
	held    int            // of out, that the last run may have left something in
	pin     runtime.Pinner
}

// NewRequest makes one, for runs of at most so many inputs and outputs.
func (c *Compiled) NewRequest(inputs, outputs int) (*Request, error) {
	r := &Request{}
	var e C.slo_error
	if C.slo_request(c.c, &r.c, &e) != 0 {
		return nil, failure(&e)
	}
	r.in, r.out = tensors(inputs), tensors(outputs)
	return r, nil
}

// tensors is memory of C's for n. Go's allocator ends the process where there is none, and so does this.
func tensors(n int) []C.slo_tensor {
	p := (*C.slo_tensor)(C.calloc(C.size_t(n+1), C.sizeof_slo_tensor))
	return unsafe.Slice(p, n+1)
}

// Close frees it.
func (r *Request) Close() {
	r.Release()
	C.slo_request_free(r.c)
	C.free(unsafe.Pointer(&r.in[0]))
	C.free(unsafe.Pointer(&r.out[0]))
	*r = Request{}
}

// Release gives back what the last run allocated.
func (r *Request) Release() {
	if r.held > 0 {
		C.slo_release(&r.out[0], C.size_t(r.held))
		r.held = 0
	}
}

// Terminate ends a run that is in progress, from any goroutine.
func (r *Request) Terminate() error {
	var e C.slo_error
	if C.slo_cancel(r.c, &e) != 0 {
		return failure(&e)
	}
	return nil
}

// Terminated says that a run's error is that it was ended.
func Terminated(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == C.SLO_CANCELLED
}

// Run infers. An output that once had Data has to have it in every later run: OpenVINO writes it.
func (r *Request) Run(in, out []Tensor) error {
	if len(in) >= len(r.in) || len(out) >= len(r.out) {
		return errors.New("more inputs or outputs than the request was made for")
	}
	r.Release()
	defer r.pin.Unpin()
	r.fill(r.in, in)
	r.fill(r.out, out)
	r.held = len(out)
	var e C.slo_error
	if C.slo_run(r.c, &r.in[0], C.size_t(len(in)), &r.out[0], C.size_t(len(out)), &e) != 0 {
		return failure(&e)
	}
	for i := range out {
		t := &out[i]
		if t.Data != nil {
			continue
		}
		c := &r.out[i]
		t.Type, t.Shape = Type(c._type), t.Shape[:0]
		for k := range int(c.rank) {
			t.Shape = append(t.Shape, int64(c.dims[k]))
		}
		t.Data = unsafe.Slice((*byte)(c.data), int(c.bytes))
		if c.bytes == 0 {
			t.Data = []byte{}
		}
	}
	return nil
}

// fill writes tensors for C.
func (r *Request) fill(to []C.slo_tensor, from []Tensor) {
	for i := range from {
		t, c := &from[i], &to[i]
		c.index, c._type, c.rank = C.size_t(t.Index), C.int32_t(t.Type), C.int32_t(min(len(t.Shape), MaxRank))
		for k, d := range t.Shape[:c.rank] {
			c.dims[k] = C.int64_t(d)
		}
		c.data, c.bytes = nil, 0
		if p := unsafe.SliceData(t.Data); p != nil {
			r.pin.Pin(p) // memory of Go's, as tests have it; other memory needs none
			c.data = unsafe.Pointer(p)
		}
	}
}
