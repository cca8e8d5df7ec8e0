//go:build cgo

package cuda

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#cgo noescape sl_cuda_read
#cgo nocallback sl_cuda_read
#cgo noescape sl_cuda_write
#cgo nocallback sl_cuda_write
#cgo nocallback sl_cuda_copy
#cgo noescape sl_cuda_pin
#cgo nocallback sl_cuda_pin
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
)

// Device is the driver with one device.
type Device struct{ c *C.sl_cuda }

// Open loads the driver's library and takes the device of an ordinal, as this process
// counts. Unsupported where there is no driver or no such device.
func Open(library string, ordinal int) (*Device, error) {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var e C.sl_cuda_error
	c := C.sl_cuda_open(path, C.int(ordinal), &e)
	if c == nil {
		return nil, infer.Errorf(infer.Unsupported, "CUDA shared memory: %s", C.GoString(&e.text[0]))
	}
	return &Device{c}, nil
}

// Close gives the device back; no memory of it is open.
func (d *Device) Close() { C.sl_cuda_close(d.c) }

// Memory is an allocation of another process, opened here.
type Memory struct {
	device *Device
	at     C.uint64_t
}

// Import opens a handle of at least size bytes. InvalidArg where it can't be opened, or
// has less.
func (d *Device) Import(handle []byte, size int64) (*Memory, error) {
	if len(handle) != C.SL_CUDA_HANDLE {
		return nil, infer.Errorf(infer.InvalidArg, "a CUDA IPC handle has %d bytes, not %d", C.SL_CUDA_HANDLE, len(handle))
	}
	var e C.sl_cuda_error
	var at, have C.uint64_t
	if C.sl_cuda_import(d.c, unsafe.Pointer(unsafe.SliceData(handle)), &at, &have, &e) != 0 {
		return nil, failed(&e).opening()
	}
	m := &Memory{d, at}
	if uint64(have) < uint64(size) {
		if err := m.Close(); err != nil {
			return nil, err
		}
		return nil, infer.Errorf(infer.InvalidArg, "the memory of the CUDA IPC handle has %d bytes, less than %d", uint64(have), size)
	}
	return m, nil
}

func failed(e *C.sl_cuda_error) *failure { return &failure{int(e.code), C.GoString(&e.text[0])} }

// Pointer is where the memory begins on the device.
func (m *Memory) Pointer() Pointer { return Pointer(m.at) }

// Read copies from the device.
func (m *Memory) Read(to []byte, off int64) error { return m.device.Read(to, m.Pointer()+Pointer(off)) }

// Write copies to the device.
func (m *Memory) Write(off int64, from []byte) error {
	return m.device.Write(m.Pointer()+Pointer(off), from)
}

// Close gives the memory up.
func (m *Memory) Close() error {
	var e C.sl_cuda_error
	if C.sl_cuda_drop(m.device.c, m.at, &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Read copies from the device.
func (d *Device) Read(to []byte, from Pointer) error {
	var e C.sl_cuda_error
	data := unsafe.Pointer(unsafe.SliceData(to))
	if len(to) > 0 && C.sl_cuda_read(d.c, data, C.uint64_t(from), C.size_t(len(to)), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Write copies to the device.
func (d *Device) Write(to Pointer, from []byte) error {
	var e C.sl_cuda_error
	data := unsafe.Pointer(unsafe.SliceData(from))
	if len(from) > 0 && C.sl_cuda_write(d.c, C.uint64_t(to), data, C.size_t(len(from)), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Copy copies n bytes within the device; they are there when it returns.
func (d *Device) Copy(to, from Pointer, n int64) error {
	var e C.sl_cuda_error
	if n > 0 && C.sl_cuda_copy(d.c, C.uint64_t(to), C.uint64_t(from), C.size_t(n), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Alloc takes n > 0 bytes of the device. A device that is full is Unavailable.
func (d *Device) Alloc(n int64) (Pointer, error) {
	var e C.sl_cuda_error
	var at C.uint64_t
	if C.sl_cuda_alloc(d.c, C.size_t(n), &at, &e) != 0 {
		return 0, failed(&e).taking(n)
	}
	return Pointer(at), nil
}

// Free gives back what Alloc took.
func (d *Device) Free(p Pointer) error {
	var e C.sl_cuda_error
	if C.sl_cuda_free(d.c, C.uint64_t(p), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Pin makes mapped memory page-locked for the device until Unpin. readOnly says that it is
// mapped for reading alone, which not every machine can pin. All pages of it are resident then.
func (d *Device) Pin(mem []byte, readOnly bool) error {
	var e C.sl_cuda_error
	var flag C.int
	if readOnly {
		flag = 1
	}
	if C.sl_cuda_pin(d.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), flag, &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Unpin undoes Pin, before the memory is unmapped.
func (d *Device) Unpin(mem []byte) error {
	var e C.sl_cuda_error
	if C.sl_cuda_unpin(d.c, unsafe.Pointer(unsafe.SliceData(mem)), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}
