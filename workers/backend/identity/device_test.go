//go:build cgo

package identity_test

import (
	"testing"

	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
	"github.com/sluice-serve/sluice/workers/internal/cuda/cudatest"
)

// fakeGPU is memory of the driver that stands in for one.
type fakeGPU struct{ *cuda.Device }

func (g fakeGPU) Alloc(n int64) (uint64, error) {
	p, err := g.Device.Alloc(n)
	return uint64(p), err
}

func (g fakeGPU) Free(p uint64) error                { return g.Device.Free(cuda.Pointer(p)) }
func (g fakeGPU) Read(to []byte, from uint64) error  { return g.Device.Read(to, cuda.Pointer(from)) }
func (g fakeGPU) Write(to uint64, from []byte) error { return g.Device.Write(cuda.Pointer(to), from) }

func (g fakeGPU) Copy(to, from uint64, n int64) error {
	return g.Device.Copy(cuda.Pointer(to), cuda.Pointer(from), n)
}

// On a GPU the backend takes tensors in its memory, and gives all of it back.
func TestSuiteOnGPU(t *testing.T) {
	library, control := cudatest.Controlled(t)
	d, err := cuda.Open(library, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		s := openWith(t, map[string]string{"device-memory": "true"})
		s.Device.GPU, s.Memory = true, fakeGPU{d}
		return s
	})
	if n := control.Copies(); n[0] == 0 || n[1] == 0 || n[2] == 0 {
		t.Errorf("%v copies: something was not tried", n)
	}
	if n := control.Allocations.Load(); n != 0 {
		t.Errorf("%d allocations are left", n)
	}
}
