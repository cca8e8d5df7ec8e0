//go:build cgo

package cuda

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda/cudatest"
)

func opened(t *testing.T) *Device {
	t.Helper()
	d, err := Open(cudatest.Driver(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// memory is a file that stands for another process's device memory; its path is short.
func memory(t *testing.T, data []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "m")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func handle(path string) []byte {
	h := cudatest.Handle(path)
	return h[:]
}

func TestReadAndWrite(t *testing.T) {
	d := opened(t)
	path := memory(t, []byte("0123456789"))
	m, err := d.Import(handle(path), 10)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 { // any thread
		wg.Go(func() {
			got := make([]byte, 3)
			if err := m.Read(got, 2); err != nil || string(got) != "234" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if err := m.Write(7, []byte("xyz")); err != nil {
		t.Error(err)
	}
	if err := m.Write(0, nil); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, []byte("0123456xyz")) {
		t.Errorf("%q, %v", data, err)
	}
	if err := m.Read(make([]byte, 4), 7); infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), "cuMemcpyDtoH") {
		t.Errorf("past its end: %v", err)
	}
	if err := m.Write(8, make([]byte, 4)); infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), "cuMemcpyHtoD") {
		t.Errorf("past its end: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); infer.CodeOf(err) != infer.Internal {
		t.Errorf("closed twice: %v", err)
	}
}

func TestImportRefused(t *testing.T) {
	d := opened(t)
	path := memory(t, []byte("0123456789"))
	for name, c := range map[string]struct {
		handle []byte
		size   int64
		code   infer.Code
		text   string
	}{
		"gone":      {handle("/nowhere"), 1, infer.InvalidArg, "failed to open CUDA IPC handle: cuIpcOpenMemHandle: invalid resource handle (400); the process that exported it"},
		"its own":   {handle("self"), 1, infer.InvalidArg, "a process can't open a handle of its own memory"},
		"full":      {handle("full"), 1, infer.Internal, "out of memory (2)"},
		"too small": {handle(path), 11, infer.InvalidArg, "has 10 bytes, less than 11"},
		"short":     {[]byte("x"), 1, infer.InvalidArg, "has 64 bytes, not 1"},
	} {
		if _, err := d.Import(c.handle, c.size); infer.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was refused is closed: the driver has room for as many as before.
	for range 100 {
		if _, err := d.Import(handle(path), 11); infer.CodeOf(err) != infer.InvalidArg {
			t.Fatal(err)
		}
	}
}

func TestOpenRefused(t *testing.T) {
	library := cudatest.Driver(t)
	empty := filepath.Join(t.TempDir(), "empty.so")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		library string
		ordinal int
		text    string
	}{
		"no library": {"libsluice-nothing.so.1", 0, "the CUDA driver can't be loaded"},
		"no ELF":     {empty, 0, "the CUDA driver can't be loaded"},
		"no driver":  {"libm.so.6", 0, "the CUDA driver has no cuInit"},
		"no device":  {library, 3, "cuDeviceGet: invalid device ordinal (101)"},
	} {
		if _, err := Open(c.library, c.ordinal); infer.CodeOf(err) != infer.Unsupported || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Memory of the device's own: copies within it are there when Copy returns, and what fails
// leaves nothing behind.
func TestOwnMemory(t *testing.T) {
	library, control := cudatest.Controlled(t)
	d, err := Open(library, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	h := NewHeap(d, 1<<20)
	a, err := h.Alloc(10)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Alloc(10)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(a.At, []byte("0123456789")); err != nil {
		t.Error(err)
	}
	if err := d.Copy(b.At+2, a.At+5, 3); err != nil {
		t.Error(err)
	}
	got := make([]byte, 10)
	if err := d.Read(got, b.At); err != nil || string(got[2:5]) != "567" {
		t.Errorf("%q, %v", got, err)
	}
	if n := control.Copies(); n != [3]int64{1, 1, 1} {
		t.Errorf("%v copies", n)
	}
	control.FailCopy.Store(700)
	for name, err := range map[string]error{"cuMemcpyDtoD": d.Copy(a.At, b.At, 1), "cuMemcpyHtoD": d.Write(a.At, got), "cuMemcpyDtoH": d.Read(got, a.At)} {
		if infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), name+": an illegal memory access was encountered (700)") {
			t.Errorf("%s: %v", name, err)
		}
	}
	control.Capacity.Store(control.Bytes.Load())
	if _, err := h.Alloc(1 << 12); infer.ReasonOf(err) != infer.ReasonMemory || !strings.Contains(err.Error(), "cuMemAlloc: out of memory (2)") {
		t.Errorf("a full device: %v", err)
	}
	for _, x := range []Block{a, b} {
		if err := h.Free(x); err != nil {
			t.Error(err)
		}
	}
	if err := h.Close(); err != nil || control.Allocations.Load() != 0 || control.Bytes.Load() != 0 {
		t.Errorf("%d allocations of %d bytes are left, %v", control.Allocations.Load(), control.Bytes.Load(), err)
	}
	if err := d.Free(a.At); infer.CodeOf(err) != infer.Internal {
		t.Errorf("freed twice: %v", err)
	}
	mem := make([]byte, 4096)
	if err := d.Pin(mem, true); err != nil || control.Pinned.Load() != 1 {
		t.Errorf("%d ranges are pinned, %v", control.Pinned.Load(), err)
	}
	if err := d.Unpin(mem); err != nil || control.Pinned.Load() != 0 {
		t.Errorf("%d ranges are pinned, %v", control.Pinned.Load(), err)
	}
	control.FailPin.Store(801)
	if err := d.Pin(mem, false); infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), "cuMemHostRegister: operation not supported (801)") {
		t.Errorf("pinned: %v", err)
	}
}
