//go:build cgo

package client

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/internal/cuda/cudatest"
)

// onGPU is a worker with a GPU that a driver stands in for, and a version on it whose backend
// takes device memory.
type onGPU struct {
	*Workers
	control *cudatest.Control
	spec    Spec
	v       *Version
	path    string // of the device memory in slot 1, of 4096 bytes
}

func startOnGPU(t *testing.T, params map[string]string) *onGPU {
	t.Helper()
	library, control := cudatest.Controlled(t)
	gpu := as("gpu")
	gpu.GPU = true
	gpu.Env = append(gpu.Env, "SLUICE_TEST_CUDA="+library)
	g := &onGPU{Workers: start(t, Config{Local: []LocalWorker{gpu}, Backoff: time.Millisecond}), control: control, spec: one(params)}
	g.spec.Instances[0].GPU = true
	g.spec.Options = map[string]string{"device-memory": "true"}
	g.v = load(t, g.Workers, g.spec)
	g.path = deviceMemory(t, bytes.Repeat([]byte("0123456789abcdef"), 256))
	openRegionOf(t, g.Workers, deviceRegion(1, g.path, 4096))
	if g.v.Device() == "" || !g.v.Reaches(1) {
		t.Fatal("the version takes no tensors in device memory")
	}
	return g
}

// end wants all device memory back.
func (g *onGPU) end(t *testing.T) {
	t.Helper()
	unload(t, g.v)
	if n := g.control.Allocations.Load(); n != 0 {
		t.Errorf("%d allocations of %d bytes are left on the device", n, g.control.Bytes.Load())
	}
	closeRegionOf(t, g.Workers, 1)
}

// copies are those of f.
func (g *onGPU) copies(f func()) [3]int64 {
	before := g.control.Copies()
	f()
	after := g.control.Copies()
	return [3]int64{after[0] - before[0], after[1] - before[1], after[2] - before[2]}
}

// run executes a batch and gives its result, without an error of all.
func (g *onGPU) run(t *testing.T, b *infer.Batch, results chan *infer.Result) *infer.Result {
	t.Helper()
	g.v.Executor(0).Execute(b)
	r := wait(t, results)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

// Tensors in a region of the device are handed over and made there; copies are those that are
// needed. The backend itself copies each output once.
func TestDeviceMemory(t *testing.T) {
	g := startOnGPU(t, nil)
	host := newShared(t, 4096)
	openRegionOf(t, g.Workers, host.region(2))
	device := func(off int64) infer.Place { return infer.Place{Region: 1, Offset: off, Size: 64} }
	onHost := func(off int64) infer.Place { return infer.Place{Region: 2, Offset: off, Size: 64} }
	none := infer.Place{}
	for _, c := range []struct {
		name    string
		in, out []infer.Place
		want    [3]int64 // copies to the device, to the host, on the device
	}{
		{"region to region", []infer.Place{device(64)}, []infer.Place{device(1024)}, [3]int64{0, 0, 1}},
		{"region to where no output can be made", []infer.Place{device(64)}, []infer.Place{device(1028)}, [3]int64{0, 0, 2}},
		{"region to the place of the input", []infer.Place{device(64)}, []infer.Place{device(64)}, [3]int64{0, 0, 2}},
		{"odd address", []infer.Place{device(65)}, []infer.Place{device(1024)}, [3]int64{0, 0, 2}},
		{"message to region", []infer.Place{none}, []infer.Place{device(1024)}, [3]int64{1, 0, 0}},
		{"region to message", []infer.Place{device(64)}, []infer.Place{none}, [3]int64{0, 1, 1}},
		{"host region to region", []infer.Place{onHost(64)}, []infer.Place{device(1024)}, [3]int64{1, 0, 0}},
		{"region to host region", []infer.Place{device(64)}, []infer.Place{onHost(1024)}, [3]int64{0, 1, 1}},
		{"message to message", []infer.Place{none}, []infer.Place{none}, [3]int64{1, 1, 0}},
		{"two requests", []infer.Place{device(64), none}, []infer.Place{device(1024), none}, [3]int64{1, 1, 3}},
		{"three requests", []infer.Place{device(64), onHost(0), device(256)}, []infer.Place{none, device(2048), onHost(2048)}, [3]int64{1, 2, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, results := placedBatch(16, c.in, c.out)
			var wants [][]byte
			data, err := os.ReadFile(g.path)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range c.in {
				want := b.Inputs[0].Segments[i]
				switch p.Region {
				case 1:
					want = data[p.Offset:][:64]
				case 2:
					want = bytes.Clone(host.mem[p.Offset:][:64])
				}
				wants = append(wants, want)
			}
			var r *infer.Result
			if n := g.copies(func() { r = g.run(t, b, results) }); n != c.want {
				t.Errorf("%v copies, want %v", n, c.want)
			}
			defer r.Memory.Release()
			if data, err = os.ReadFile(g.path); err != nil {
				t.Fatal(err)
			}
			for i, a := range answers(t, b, r) {
				if a.Err != nil {
					t.Fatalf("request %d: %v", i, a.Err)
				}
				got := a.Response.Outputs[0].Data
				switch p := c.out[i]; p.Region {
				case 1:
					got = data[p.Offset:][:64]
				case 2:
					got = host.mem[p.Offset:][:64]
				}
				if !bytes.Equal(got, wants[i]) {
					t.Errorf("request %d got %q, want %q", i, got, wants[i])
				}
			}
		})
	}
	closeRegionOf(t, g.Workers, 2)
	g.end(t)
}

// Integers of a client are copied on the device, and texts to the host: they are indices and
// lengths, which the client may change at any time.
func TestDeviceMemoryOfClients(t *testing.T) {
	for _, c := range []struct {
		datatype infer.Datatype
		want     [3]int64
	}{{infer.Int32, [3]int64{0, 1, 2}}, {infer.Bool, [3]int64{0, 1, 2}}, {infer.FP16, [3]int64{0, 1, 1}}, {infer.Bytes, [3]int64{0, 1, 0}}} {
		t.Run(c.datatype.String(), func(t *testing.T) {
			g := startOnGPU(t, nil)
			unload(t, g.v)
			g.spec.Config.Input[0].DataType = modelconfig.DataType(c.datatype)
			g.spec.Config.Output[0].DataType = modelconfig.DataType(c.datatype)
			g.v = load(t, g.Workers, g.spec)
			b, results := placedBatch(16, []infer.Place{{Region: 1, Size: 64}}, []infer.Place{{}})
			b.Inputs[0].Datatype, b.Inputs[0].Shape = c.datatype, []int64{1, 64 / max(c.datatype.Size(), 4)}
			if size := c.datatype.Size(); size > 0 && size < 4 {
				b.Inputs[0].Shape[1] = 64 / size
			}
			if c.datatype == infer.Bytes {
				b.Inputs[0].Shape[1] = 1
				if err := os.WriteFile(g.path, append([]byte{60, 0, 0, 0}, make([]byte, 4092)...), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var r *infer.Result
			if n := g.copies(func() { r = g.run(t, b, results) }); n != c.want {
				t.Errorf("%v copies, want %v", n, c.want)
			}
			r.Memory.Release()
			g.end(t)
		})
	}
}

// residentBatch asks for outputs that stay on the device.
func residentBatch(rows int, in ...infer.Place) (*infer.Batch, chan *infer.Result) {
	b, results := placedBatch(16, in, make([]infer.Place, rows))
	for _, q := range b.Requests {
		q.Outputs = []infer.RequestedOutput{{Name: "OUTPUT0", Resident: true}}
	}
	return b, results
}

// What one batch leaves on the device the next one gets there: in place, or gathered from
// several. It stays as long as its answer's memory.
func TestResidentOutputs(t *testing.T) {
	g := startOnGPU(t, nil)
	b, results := residentBatch(2, infer.Place{}, infer.Place{})
	want := bytes.Clone(b.Inputs[0].Segments[0])
	want = append(want, b.Inputs[0].Segments[1]...)
	var first *infer.Result
	if n := g.copies(func() { first = g.run(t, b, results) }); n != [3]int64{1, 0, 0} {
		t.Errorf("%v copies for outputs that stay", n)
	}
	var resident []infer.Place
	for i, a := range answers(t, b, first) {
		o := a.Response.Outputs[0]
		if !o.Place.IsResident() || o.Data != nil || o.Place.Size != 64 || o.Place.Offset != int64(64*i) || o.Shape[0] != 1 {
			t.Fatalf("request %d got %+v", i, o)
		}
		resident = append(resident, o.Place)
	}
	if !g.v.Reaches(resident[0].Region) || g.v.Reaches(resident[0].Region+1) {
		t.Error("who reaches what is resident is wrong")
	}
	// One row of it, on to the device; and both in the other order, to the host.
	b, results = residentBatch(1, resident[1])
	var second *infer.Result
	if n := g.copies(func() { second = g.run(t, b, results) }); n != [3]int64{0, 0, 1} {
		t.Errorf("%v copies from the device to the device", n)
	}
	b, results = placedBatch(16, []infer.Place{resident[1], answers(t, b, second)[0].Response.Outputs[0].Place, resident[0]}, make([]infer.Place, 3))
	var third *infer.Result
	if n := g.copies(func() { third = g.run(t, b, results) }); n != [3]int64{0, 1, 4} {
		t.Errorf("%v copies of three tensors on the device", n)
	}
	if got := third.Outputs[0].Data; !bytes.Equal(got, bytes.Join([][]byte{want[64:], want[64:], want[:64]}, nil)) {
		t.Errorf("got %x, want %x", got, want)
	}
	// Whoever is elsewhere reads it through the worker.
	read, err := g.ReadPlace(t.Context(), infer.Place{Region: resident[0].Region, Offset: 4, Size: 100})
	if err != nil || !bytes.Equal(read.Data, want[4:104]) {
		t.Errorf("read %v", err)
	}
	read.Release()
	if err := g.WritePlace(t.Context(), resident[0], []byte("x")); infer.CodeOf(err) != infer.Internal {
		t.Errorf("written: %v", err)
	}
	g.refused(t, resident[0])
	for _, r := range []*infer.Result{first, second, third} {
		r.Memory.Release()
	}
	if g.v.Reaches(resident[0].Region) {
		t.Error("what was given back is reached")
	}
	b, results = placedBatch(16, resident[:1], make([]infer.Place, 1))
	g.v.Executor(0).Execute(b)
	if r := wait(t, results); infer.CodeOf(r.Err) != infer.Unavailable || !strings.Contains(r.Err.Error(), "a tensor in device memory was lost with its worker") {
		t.Errorf("what was given back is read: %v", r.Err)
	}
	g.end(t)
}

// refused wants errors for what a batch or a call must not do with a resident output.
func (g *onGPU) refused(t *testing.T, resident infer.Place) {
	t.Helper()
	s := g.workers[0].session
	o, err := g.resident.find(resident.Region)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CloseRegion(t.Context(), &workerpb.CloseRegionRequest{Slot: o.slot}); infer.CodeOf(fromStatus(err)) != infer.NotFound {
		t.Errorf("closed: %v", err)
	}
	if _, err := s.client.WriteRegion(t.Context(), &workerpb.WriteRegionRequest{Slot: o.slot, Data: []byte("x")}); infer.CodeOf(fromStatus(err)) != infer.InvalidArg {
		t.Errorf("written: %v", err)
	}
	for name, c := range map[string]struct {
		in, out infer.Place
		text    string
	}{
		"beyond its end":  {infer.Place{Region: resident.Region, Offset: 65, Size: 64}, infer.Place{}, "64 bytes at offset 65 lie outside"},
		"far beyond it":   {infer.Place{Region: resident.Region, Offset: 1<<41 - 1, Size: 64}, infer.Place{}, "lie outside"},
		"as an output":    {infer.Place{}, infer.Place{Region: o.slot, Size: 64}, "can't be written"},
		"an unknown slot": {infer.Place{}, infer.Place{Region: o.slot + 7, Size: 64}, "has no shared memory region in slot"},
	} {
		b, results := placedBatch(16, []infer.Place{c.in}, []infer.Place{c.out})
		r := g.run(t, b, results)
		if a := answers(t, b, r)[0]; a.Err == nil || !strings.Contains(a.Err.Error(), c.text) {
			t.Errorf("%s: %v", name, a.Err)
		}
		r.Memory.Release()
	}
}

// A device without memory is done without; one that does not copy fails those that need it.
func TestDeviceFaults(t *testing.T) {
	g := startOnGPU(t, nil)
	check := func(name string, want [3]int64) {
		t.Helper()
		b, results := residentBatch(2, infer.Place{Region: 1, Offset: 0, Size: 64}, infer.Place{})
		var r *infer.Result
		if n := g.copies(func() { r = g.run(t, b, results) }); n != want {
			t.Errorf("%s: %v copies, want %v", name, n, want)
		}
		for i, a := range answers(t, b, r) {
			if a.Err != nil {
				t.Errorf("%s: request %d: %v", name, i, a.Err)
			}
		}
		r.Memory.Release()
	}
	check("in good order", [3]int64{1, 0, 2})
	unload(t, g.v)
	g.v = load(t, g.Workers, g.spec)
	g.control.FailAlloc.Store(2)
	check("out of memory", [3]int64{0, 1, 0}) // the region's part is read to the host
	g.control.FailAlloc.Store(0)
	g.control.Capacity.Store(256)
	check("memory for the input alone", [3]int64{1, 1, 1})
	g.control.Capacity.Store(0)
	g.control.FailCopy.Store(700)
	for _, in := range [][]infer.Place{{{Region: 1, Size: 64}}, {{Region: 1, Size: 64}, {}}, {{}}} {
		b, results := residentBatch(len(in), in...)
		g.v.Executor(0).Execute(b)
		r := wait(t, results)
		if r.Err == nil || infer.CodeOf(r.Err) != infer.Internal || !strings.Contains(r.Err.Error(), "an illegal memory access was encountered (700)") {
			t.Errorf("copies fail: %+v", r)
		}
		r.Memory.Release()
	}
	g.control.FailCopy.Store(0)
	check("in order again", [3]int64{1, 0, 2})
	g.end(t)
}

// A region that is closed while a batch reads it on the device goes when the batch has ended.
func TestDeviceRegionClosedInUse(t *testing.T) {
	g := startOnGPU(t, map[string]string{"execute_delay_ms": "300"})
	b, results := residentBatch(1, infer.Place{Region: 1, Offset: 65, Size: 64})
	g.v.Executor(0).Execute(b)
	eventually(t, "the worker has the region", func() bool { return g.control.OnDevice.Load() == 1 }) // to an address that fits
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.CloseRegion(ctx, 1); err == nil {
		t.Error("a region was closed that a batch reads")
	}
	r := wait(t, results)
	if a := answers(t, b, r)[0]; a.Err != nil || !a.Response.Outputs[0].Place.IsResident() {
		t.Errorf("%+v", a)
	}
	r.Memory.Release()
	openRegionOf(t, g.Workers, deviceRegion(1, g.path, 4096))
	g.end(t)
}

// A worker that dies takes what lies on its device with it: who needs that gets an error that says so, and
// others are served by the next one.
func TestResidentOutputsOfALostWorker(t *testing.T) {
	g := startOnGPU(t, nil)
	b, results := residentBatch(1, infer.Place{})
	first := g.run(t, b, results)
	resident := answers(t, b, first)[0].Response.Outputs[0].Place
	if err := unix.Kill(int(g.States()[0].PID), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the model is back", func() bool {
		b, results := placedBatch(16, []infer.Place{{}}, []infer.Place{{}})
		g.v.Executor(0).Execute(b)
		r := wait(t, results)
		r.Memory.Release()
		return r.Err == nil && g.States()[0].Restarts == 1
	})
	b, results = placedBatch(16, []infer.Place{resident}, []infer.Place{{}})
	g.v.Executor(0).Execute(b)
	const lost = "a tensor in device memory was lost with its worker"
	if r := wait(t, results); infer.CodeOf(r.Err) != infer.Unavailable || !strings.Contains(r.Err.Error(), lost) {
		t.Errorf("executed: %v", r.Err)
	}
	if _, err := g.ReadPlace(t.Context(), resident); infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), lost) {
		t.Errorf("read: %v", err)
	}
	if g.v.Reaches(resident.Region) {
		t.Error("what was lost is reached")
	}
	first.Memory.Release() // the next worker has nothing of it
	b, results = residentBatch(1, infer.Place{})
	r := g.run(t, b, results)
	if !answers(t, b, r)[0].Response.Outputs[0].Place.IsResident() {
		t.Error("the next worker leaves nothing there")
	}
	r.Memory.Release()
	g.control.Allocations.Store(0) // those of the worker that was killed are gone with it
	unload(t, g.v)
	closeRegionOf(t, g.Workers, 1)
}

// The arenas are page-locked where the GPU can do that, and given back; a worker says which
// kinds of memory its instances take.
func TestPinnedArenas(t *testing.T) {
	g := startOnGPU(t, nil)
	if n := g.control.Pinned.Load(); n != 2 {
		t.Errorf("%d arenas are page-locked", n)
	}
	g.end(t)
	library, control := cudatest.Controlled(t)
	control.FailPin.Store(801)
	gpu := as("gpu")
	gpu.GPU = true
	gpu.Env = append(gpu.Env, "SLUICE_TEST_CUDA="+library)
	w := start(t, Config{Local: []LocalWorker{gpu}})
	v := load(t, w, g.spec)
	if v.Device() == "" || control.Pinned.Load() != 0 {
		t.Error("a GPU that can't page-lock the arenas is not used")
	}
	unload(t, v)
}
