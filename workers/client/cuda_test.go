//go:build cgo

package client

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda/cudatest"
)

// deviceMemory is a file that stands for memory of a GPU, of another process.
func deviceMemory(t *testing.T, data []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cu") // its path has to fit into a handle
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

func deviceRegion(slot uint32, path string, size int64) *infer.Region {
	return &infer.Region{Slot: slot, Name: "device", Size: size, CUDA: &infer.CUDAHandle{Raw: cudatest.Handle(path)}}
}

// A worker with a GPU, beside one without, reads and writes memory of the GPU, with a
// driver that stands in for it. Instances elsewhere don't reach it.
func TestCUDARegions(t *testing.T) {
	gpu := as("gpu")
	gpu.GPU = true
	gpu.Env = append(gpu.Env, "SLUICE_TEST_CUDA="+cudatest.Driver(t))
	w := start(t, Config{Local: []LocalWorker{as("worker"), gpu}, Backoff: time.Millisecond})
	onGPU := one(nil)
	onGPU.Instances[0].GPU = true
	v := load(t, w, onGPU)
	defer unload(t, v)
	elsewhere := load(t, w, one(nil))
	defer unload(t, elsewhere)
	path := deviceMemory(t, bytes.Repeat([]byte("0123"), 100))
	host := newShared(t, 4096)
	openRegionOf(t, w, deviceRegion(1, path, 400))
	openRegionOf(t, w, host.region(2))
	if !v.Reaches(1) || !v.Reaches(2) || elsewhere.Reaches(1) || !elsewhere.Reaches(2) || v.Reaches(3) {
		t.Error("who reaches which region is wrong")
	}
	checkDevice(t, v, path)
	// From device to host memory, and beside a request by message.
	b, results := placedBatch(16, []infer.Place{{Region: 1, Size: 64}, {}}, []infer.Place{{Region: 2, Size: 64}, {}})
	v.Executor(0).Execute(b)
	r := wait(t, results)
	for i, a := range answers(t, b, r) {
		if a.Err != nil {
			t.Errorf("request %d: %v", i, a.Err)
		}
	}
	r.Memory.Release()
	if !bytes.HasPrefix(host.mem, []byte("01230123")) {
		t.Errorf("the host has %q", host.mem[:8])
	}
	// What runs elsewhere goes through the worker of the GPU.
	if err := w.WritePlace(t.Context(), infer.Place{Region: 1, Offset: 200, Size: 200}, []byte("there")); err != nil {
		t.Fatal(err)
	}
	got, err := w.ReadPlace(t.Context(), infer.Place{Region: 1, Offset: 199, Size: 7})
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Data) != "3there1" {
		t.Errorf("read %q", got.Data)
	}
	got.Release()
	if err := unix.Kill(int(w.States()[1].PID), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is back", func() bool { return w.States()[1].Restarts == 1 && w.Ready() })
	eventually(t, "the model is back", func() bool {
		b, results := placedBatch(16, []infer.Place{{}}, []infer.Place{{}})
		v.Executor(0).Execute(b)
		r := wait(t, results)
		r.Memory.Release()
		return r.Err == nil
	})
	checkDevice(t, v, path)
	closeRegionOf(t, w, 1)
	closeRegionOf(t, w, 2)
	checkDeviceRefused(t, w, path)
}

// A large input on a device is one that is always copied, and is none of a file that costs
// nothing.
func TestCUDALarge(t *testing.T) {
	const size = 20 << 20
	gpu := as("gpu")
	gpu.GPU = true
	gpu.Env = append(gpu.Env, "SLUICE_TEST_CUDA="+cudatest.Driver(t))
	w := start(t, Config{Local: []LocalWorker{gpu}, Backoff: time.Millisecond})
	s := one(nil)
	s.Instances[0].GPU = true
	v := load(t, w, s)
	defer unload(t, v)
	path := deviceMemory(t, bytes.Repeat([]byte("0123"), size/2))
	openRegionOf(t, w, deviceRegion(1, path, 2*size))
	b, results := placedBatch(size/4, []infer.Place{{Region: 1, Size: size}}, []infer.Place{{Region: 1, Offset: size, Size: size}})
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if a := answers(t, b, r); a[0].Err != nil {
		t.Error(a[0].Err)
	}
	r.Memory.Release()
	closeRegionOf(t, w, 1)
}

func checkDeviceRefused(t *testing.T, w *Workers, path string) {
	t.Helper()
	for _, c := range []struct {
		r    *infer.Region
		code infer.Code
		text string
	}{
		{deviceRegion(1, "/nowhere", 4), infer.InvalidArg, "failed to register CUDA shared memory region 'device': failed to open CUDA IPC handle"},
		{deviceRegion(1, "self", 4), infer.InvalidArg, "its own memory"},
		{deviceRegion(1, path, 401), infer.InvalidArg, "has 400 bytes, less than 401"},
	} {
		if err := w.OpenRegion(t.Context(), c.r); infer.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// checkDevice reads and writes the memory of a GPU in slot 1.
func checkDevice(t *testing.T, v *Version, path string) {
	t.Helper()
	b, results := placedBatch(16, []infer.Place{{Region: 1, Offset: 1, Size: 64}}, []infer.Place{{Region: 1, Offset: 100, Size: 70}})
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if a := answers(t, b, r); a[0].Err != nil || a[0].Response.Outputs[0].Place != (infer.Place{Region: 1, Offset: 100, Size: 64}) {
		t.Fatalf("%+v", a[0])
	}
	r.Memory.Release()
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(data[1:65], data[100:164]) || !bytes.HasPrefix(data[1:], []byte("123012")) {
		t.Errorf("the device holds %q, %v", data[:170], err)
	}
}

// A worker that has a GPU and no driver says so, and lives on.
func TestCUDAWithoutDriver(t *testing.T) {
	gpu := as("gpu")
	gpu.GPU = true
	gpu.Env = append(gpu.Env, "SLUICE_TEST_CUDA=libsluice-nothing.so")
	w := start(t, Config{Local: []LocalWorker{gpu}})
	for range 2 {
		err := w.OpenRegion(t.Context(), deviceRegion(1, "x", 4))
		if infer.CodeOf(err) != infer.Unsupported || !strings.Contains(err.Error(), "the CUDA driver can't be loaded") {
			t.Error(err)
		}
	}
}
