//go:build cgo

package workers_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/internal/cuda/cudatest"
	"github.com/sluice-serve/sluice/workers/wire"
)

// onDevice is scripted, on a GPU and with tensors in its memory.
type onDevice struct{ *scripted }

func (s onDevice) factory(map[string]string) (backend.Backend, error) { return s, nil }

func (s onDevice) Info() backend.Info {
	info := s.scripted.Info()
	info.GPU, info.Memory = true, []worker.MemoryKind{worker.MemoryKind_HOST, worker.MemoryKind_DEVICE}
	return info
}

// startOnDevice runs a worker with a GPU in this process, and one instance on the lane.
func startOnDevice(t *testing.T, config workers.Config, open int, execute func(b backend.Batch) error) (*gateway, *cudatest.Control) {
	t.Helper()
	library, control := cudatest.Controlled(t)
	s := onDevice{&scripted{open: open}}
	s.execute.Store(execute)
	config.Device, config.CUDALibrary = workers.Device{GPU: true}, library
	g := startLocal(t, config, workers.Deps{Backends: map[string]backend.Factory{"identity": s.factory}}, 1<<20)
	g.hello(t, true)
	r := loadRequest(1, fp32Config(nil), 0)
	r.Instances[0].Kind = worker.Device_GPU
	m := must(g.client.Load(ctx(t), r))(t)
	if kinds := m.GetMemoryKinds(); len(kinds) != 3 {
		t.Fatalf("instances take tensors in %v", kinds)
	}
	return g, control
}

// toDevice copies input 0 to an output in device memory.
func toDevice(m backend.Memory, in infer.Tensor) (infer.Tensor, error) {
	out := infer.Tensor{Name: "OUTPUT0", Datatype: in.Datatype, Shape: in.Shape}
	from := m.Buffer(&in)
	if err := m.AllocIn(&out, from.Size, infer.DeviceMemory); err != nil {
		return out, err
	}
	return out, m.Copy(m.Buffer(&out), from)
}

// What a backend must not do with memory is an error that says so, and harms nobody.
func TestDeviceMemoryMisused(t *testing.T) {
	place := func(change func(out *infer.Tensor)) func(b backend.Batch) error {
		return func(b backend.Batch) error {
			out, err := toDevice(b, b.Inputs()[0])
			if err != nil {
				return err
			}
			change(&out)
			return b.Outputs([]infer.Tensor{out})
		}
	}
	for name, c := range map[string]struct {
		execute func(b backend.Batch) error
		text    string // "": it succeeds
	}{
		"as it should be":     {place(func(*infer.Tensor) {}), ""},
		"no such memory":      {place(func(o *infer.Tensor) { o.Place.Region += 7 }), "lies in no memory of its batch"},
		"a client's slot":     {place(func(o *infer.Tensor) { o.Place.Region = 1 }), "lies in no memory of its batch"},
		"before it":           {place(func(o *infer.Tensor) { o.Place.Offset = -1 }), "lies in no memory of its batch"},
		"behind it":           {place(func(o *infer.Tensor) { o.Place.Offset = 4 }), "lies in no memory of its batch"},
		"a size that wraps":   {place(func(o *infer.Tensor) { o.Place.Offset, o.Place.Size = 1, 1<<63-1 }), "lies in no memory of its batch"},
		"too few bytes":       {place(func(o *infer.Tensor) { o.Place.Size -= 4 }), "has 28 bytes of device memory, want 32"},
		"a shape that wraps":  {place(func(o *infer.Tensor) { o.Shape = []int64{2, 1 << 62} }), "of device memory, want"},
		"texts":               {place(func(o *infer.Tensor) { o.Datatype = infer.Bytes }), "lies in no memory of its batch"},
		"data and a place":    {place(func(o *infer.Tensor) { o.Data = []byte("x") }), "lies in no memory of its batch"},
		"no datatype":         {place(func(o *infer.Tensor) { o.Datatype = infer.Invalid }), "has 32 bytes of device memory"},
		"a negative size":     {func(b backend.Batch) error { return b.AllocIn(&infer.Tensor{}, -1, infer.DeviceMemory) }, "asked for -1 bytes"},
		"more than there is":  {func(b backend.Batch) error { return b.AllocIn(&infer.Tensor{}, 1<<62, infer.DeviceMemory) }, "4611686018427387904"},
		"copies of two sizes": {func(b backend.Batch) error { return b.Copy(backend.Buffer{Size: 1}, backend.Buffer{Size: 2}) }, "2 bytes can't be copied to 1"},
		"another device": {func(b backend.Batch) error {
			return b.Copy(backend.Buffer{Kind: infer.DeviceMemory, Device: 3, Size: 1}, backend.Buffer{Data: []byte("x"), Size: 1})
		}, "device memory was named that the instance has none of"},
		"an address of nobody's": {func(b backend.Batch) error {
			return b.Copy(backend.Buffer{Kind: infer.DeviceMemory, Pointer: 1 << 40, Size: 1}, backend.Buffer{Data: []byte("x"), Size: 1})
		}, "cuMemcpyHtoD"},
		"a tensor of nobody's": {func(b backend.Batch) error {
			return infer.Errorf(infer.Internal, "%+v", b.Buffer(&infer.Tensor{Place: infer.Place{Region: 5}}))
		}, "Size:0}"},
	} {
		t.Run(name, func(t *testing.T) {
			g, control := startOnDevice(t, workers.Config{}, 0, c.execute)
			b, data := rowsBatch(1, 2, 4)
			g.post(0, g.layOut(t, b, data))
			done, res := g.result(t)
			switch {
			case c.text != "" && !strings.Contains(res.Err, c.text):
				t.Errorf("got %q, want %q", res.Err, c.text)
			case c.text == "" && (res.Err != "" || !bytes.Equal(g.data(t, res.Outputs[0]), data)):
				t.Errorf("got %+v", res)
			}
			g.lane.Release(done.Token)
			must(g.client.Unload(ctx(t), &worker.UnloadRequest{Handle: 1}))(t)
			if n := control.Allocations.Load(); n != 0 {
				t.Errorf("%d allocations are left", n)
			}
		})
	}
}

// residentBatch lets the outputs of its requests stay on the device.
func residentBatch(id uint64, requests int) (*wire.Batch, []byte) {
	b, data := rowsBatch(id, requests, 4)
	for i := range b.Requests {
		b.Requests[i].Outputs, b.Requests[i].Places = []string{"OUTPUT0"}, []wire.Segment{wire.Resident}
	}
	return b, data
}

// readSlot is what a worker reads of a resident output.
func (g *gateway) readSlot(t *testing.T, o wire.Output) []byte {
	t.Helper()
	slot, off, ok := o.Data.Region()
	if !ok || slot < wire.FirstResident || slot > wire.LastResident || off != 0 {
		t.Fatalf("an output lies at %+v, which is no resident tensor", o.Data)
	}
	return must(g.client.ReadRegion(ctx(t), &worker.ReadRegionRequest{Slot: slot, ByteSize: o.Data.Length}))(t).GetData()
}

// Requests that are answered one by one with parts of one buffer have a resident tensor each, also
// when their batch was kept, and the buffer stays until the last of them is given back.
func TestResidentParts(t *testing.T) {
	opens := make(chan backend.Open, 1)
	outputs := make(chan infer.Tensor, 1)
	g, control := startOnDevice(t, workers.Config{}, 8, func(b backend.Batch) error {
		out, err := toDevice(b, b.Inputs()[0])
		if err != nil {
			return err
		}
		outputs <- out
		o, err := b.Keep()
		opens <- o
		return err
	})
	b, data := residentBatch(1, 2)
	g.post(0, g.layOut(t, b, data))
	out, o := <-outputs, <-opens
	free, res := g.result(t)
	if !res.Free {
		t.Fatalf("the batch was not kept: %+v", res)
	}
	g.lane.Release(free.Token)
	var tokens []uint64
	for _, i := range []int{1, 0} {
		part := out
		part.Shape, part.Place.Offset, part.Place.Size = []int64{1, 4}, int64(16*i), 16
		if err := o.Respond(i, []infer.Tensor{part}, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	// Both are in the last result: nothing was sent before.
	done, res := g.result(t)
	tokens = append(tokens, done.Token)
	if len(res.Responses) == 1 {
		more, last := g.result(t)
		tokens = append(tokens, more.Token)
		res.Responses = append(res.Responses, last.Responses...)
	}
	for _, r := range res.Responses {
		if got := g.readSlot(t, r.Outputs[0]); !bytes.Equal(got, data[16*r.Index:][:16]) {
			t.Errorf("request %d has %x", r.Index, got)
		}
	}
	if err := o.AllocIn(&out, 16, infer.DeviceMemory); err == nil {
		t.Error("memory was taken for a batch that has ended")
	}
	if err := o.Respond(0, []infer.Tensor{out}, nil, true); err == nil {
		t.Error("a batch that has ended was answered")
	}
	for _, token := range tokens {
		g.lane.Release(token)
	}
	must(g.client.Unload(ctx(t), &worker.UnloadRequest{Handle: 1}))(t)
	if n := control.Allocations.Load(); n != 0 {
		t.Errorf("%d allocations are left", n)
	}
}

// A worker that ends gives back what is resident, and what it page-locked, whoever still had it.
func TestResidentAtTheEnd(t *testing.T) {
	g, control := startOnDevice(t, workers.Config{DeviceMemory: 4 << 10}, 0, func(b backend.Batch) error {
		out, err := toDevice(b, b.Inputs()[0])
		if err != nil {
			return err
		}
		return b.Outputs([]infer.Tensor{out})
	})
	onHost := 0
	for id := range uint64(20) { // of 256 bytes each, so that the last ones have no room
		b, data := residentBatch(id+1, 1)
		g.post(0, g.layOut(t, b, data))
		_, res := g.result(t)
		if res.Err != "" {
			t.Fatal(res.Err)
		}
		if _, _, ok := res.Outputs[0].Data.Region(); !ok {
			onHost++
			if !bytes.Equal(g.data(t, res.Outputs[0]), data) {
				t.Errorf("batch %d has another output", id)
			}
		}
	}
	if onHost != 4 || control.Bytes.Load() != 4<<10 || control.Pinned.Load() != 2 {
		t.Errorf("%d outputs are on the host, %d bytes on the device, %d arenas page-locked", onHost, control.Bytes.Load(), control.Pinned.Load())
	}
	g.conn.Close()
	g.wait(t)
	if n, p := control.Allocations.Load(), control.Pinned.Load(); n != 0 || p != 0 {
		t.Errorf("%d allocations are left, %d arenas page-locked", n, p)
	}
}

// Backends are told what is true of host memory: it is pinned where the arenas could be page-locked,
// and memory on the way to the device is not.
func TestHostMemoryKinds(t *testing.T) {
	kinds := make(chan [3]infer.MemoryKind, 1)
	execute := func(b backend.Batch) error {
		in := b.Inputs()[0]
		out := infer.Tensor{Name: "OUTPUT0", Datatype: in.Datatype, Shape: in.Shape}
		if err := b.AllocIn(&out, int64(len(in.Data)), infer.PinnedMemory); err != nil {
			return err
		}
		own := infer.Tensor{Data: make([]byte, 4)}
		kinds <- [3]infer.MemoryKind{b.Buffer(&in).Kind, b.Buffer(&out).Kind, b.Buffer(&own).Kind}
		if err := b.Copy(b.Buffer(&out), b.Buffer(&in)); err != nil {
			return err
		}
		return b.Outputs([]infer.Tensor{out})
	}
	g, control := startOnDevice(t, workers.Config{}, 0, execute)
	ask := func(handle uint64, box int) [3]infer.MemoryKind {
		t.Helper()
		b, data := rowsBatch(handle, 1, 4)
		g.post(box, g.layOut(t, b, data))
		done, res := g.result(t)
		if res.Err != "" || !bytes.Equal(g.data(t, res.Outputs[0]), data) {
			t.Errorf("got %+v", res)
		}
		g.lane.Release(done.Token)
		return <-kinds
	}
	if got := ask(1, 0); got != [3]infer.MemoryKind{infer.PinnedMemory, infer.PinnedMemory, infer.HostMemory} {
		t.Errorf("with page-locked arenas memory is %v", got)
	}
	if n := control.Copies(); n != [3]int64{} {
		t.Errorf("%v copies of tensors on the host", n)
	}
	library, unpinned := cudatest.Controlled(t)
	unpinned.FailPin.Store(801)
	s := onDevice{&scripted{}}
	s.execute.Store(execute)
	g = startLocal(t, workers.Config{Device: workers.Device{GPU: true}, CUDALibrary: library},
		workers.Deps{Backends: map[string]backend.Factory{"identity": s.factory}}, 1<<20)
	g.hello(t, true)
	r := loadRequest(1, fp32Config(nil), 0)
	r.Instances[0].Kind = worker.Device_GPU
	if m := must(g.client.Load(ctx(t), r))(t); len(m.GetMemoryKinds()) != 2 {
		t.Errorf("without page-locked arenas instances take tensors in %v", m.GetMemoryKinds())
	}
	if got := ask(1, 0); got != [3]infer.MemoryKind{} {
		t.Errorf("without page-locked arenas memory is %v", got)
	}
}
