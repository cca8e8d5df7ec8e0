// Package cudatest makes a CUDA driver for tests without a GPU: a shared library on plain
// memory, compiled from testdata/fake.c. A handle of it is the path of a file.
package cudatest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:embed testdata/fake.c
var source []byte

// Driver compiles the library and returns its path. The test is skipped where there is no
// C compiler.
func Driver(t testing.TB) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler for the fake CUDA driver")
	}
	dir := t.TempDir()
	in, library := filepath.Join(dir, "fake.c"), filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(in, source, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, in, "-ldl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the fake CUDA driver does not compile: %v\n%s", err, out)
	}
	return library
}

// Handle is one of memory that a file stands for.
func Handle(path string) (h [64]byte) {
	copy(h[:], path)
	return h
}

// Control is what a driver counts, in whatever processes have loaded it, and what a test makes it
// do. All of it is read and written while they run.
type Control struct {
	ToDevice, ToHost, OnDevice atomic.Int64 // copies
	Allocations, Bytes         atomic.Int64 // that were not given back
	Pinned                     atomic.Int64 // ranges of host memory that are registered
	Capacity                   atomic.Int64 // bytes that can be allocated; 0: any
	FailCopy                   atomic.Int64 // the CUresult of copies; 0: they succeed
	FailPin                    atomic.Int64 // the CUresult of registering; 0: it succeeds
	FailAlloc                  atomic.Int64 // the CUresult of allocations; 0: they succeed
}

// Controlled is Driver with its Control, which is there from the driver's cuInit on.
func Controlled(t testing.TB) (library string, c *Control) {
	t.Helper()
	library = Driver(t)
	f, err := os.Create(filepath.Join(filepath.Dir(library), "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int(unsafe.Sizeof(Control{}))
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return library, (*Control)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// Copies are how many copies there were: to the device, to the host, on the device.
func (c *Control) Copies() [3]int64 {
	return [3]int64{c.ToDevice.Load(), c.ToHost.Load(), c.OnDevice.Load()}
}
