//go:build !cgo

package cuda

import "github.com/sluice-serve/sluice/infer"

// Device is never opened in this build.
type Device struct{}

// Memory is never opened in this build.
type Memory struct{}

// Open is Unsupported: this build has no cgo.
func Open(string, int) (*Device, error) {
	return nil, infer.Errorf(infer.Unsupported, "CUDA shared memory: this worker was built without cgo")
}

// Close does nothing.
func (d *Device) Close() {}

// Import is Unsupported.
func (d *Device) Import([]byte, int64) (*Memory, error) {
	return nil, infer.Errorf(infer.Unsupported, "CUDA shared memory: this worker was built without cgo")
}

// Read is Unsupported.
func (m *Memory) Read([]byte, int64) error { return (&failure{-1, "no memory"}).moving() }

// Write is Unsupported.
func (m *Memory) Write(int64, []byte) error { return (&failure{-1, "no memory"}).moving() }

// Close does nothing.
func (m *Memory) Close() error { return nil }

// Pointer is 0.
func (m *Memory) Pointer() Pointer { return 0 }

// Read is an error.
func (d *Device) Read([]byte, Pointer) error { return (&failure{-1, "no memory"}).moving() }

// Write is an error.
func (d *Device) Write(Pointer, []byte) error { return (&failure{-1, "no memory"}).moving() }

// Copy is an error.
func (d *Device) Copy(Pointer, Pointer, int64) error { return (&failure{-1, "no memory"}).moving() }

// Alloc is an error.
func (d *Device) Alloc(n int64) (Pointer, error) { return 0, (&failure{-1, "no memory"}).taking(n) }

// Free does nothing.
func (d *Device) Free(Pointer) error { return nil }

// Pin is an error.
func (d *Device) Pin([]byte, bool) error { return (&failure{-1, "no memory"}).moving() }

// Unpin does nothing.
func (d *Device) Unpin([]byte) error { return nil }
