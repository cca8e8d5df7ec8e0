//go:build cgo

package cuda

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#cgo noescape sl_cuda_read
#cgo nocallback sl_cuda_read
#cgo noescape sl_cuda_write
#cgo nocallback sl_cuda_write
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

// Memory is an allocation of another process.
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

// Read copies from the device.
func (m *Memory) Read(to []byte, off int64) error {
	var e C.sl_cuda_error
	if len(to) > 0 && C.sl_cuda_read(m.device.c, unsafe.Pointer(unsafe.SliceData(to)), m.at+C.uint64_t(off), C.size_t(len(to)), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Write copies to the device.
func (m *Memory) Write(off int64, from []byte) error {
	var e C.sl_cuda_error
	if len(from) > 0 && C.sl_cuda_write(m.device.c, m.at+C.uint64_t(off), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from)), &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}

// Close gives the memory up.
func (m *Memory) Close() error {
	var e C.sl_cuda_error
	if C.sl_cuda_drop(m.device.c, m.at, &e) != 0 {
		return failed(&e).moving()
	}
	return nil
}
