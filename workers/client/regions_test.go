package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
)

// shared is a client's memory, as a file and as the client sees it.
type shared struct {
	file *os.File
	mem  []byte
}

func newShared(t testing.TB, size int) *shared {
	t.Helper()
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	s := &shared{file: os.NewFile(uintptr(fd), "client")}
	if err := s.file.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	if s.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	for i := range s.mem {
		s.mem[i] = byte(i*13 + i>>8)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Munmap(s.mem), s.file.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *shared) region(slot uint32) *infer.Region {
	return &infer.Region{Slot: slot, Name: fmt.Sprintf("r%d", slot), Size: int64(len(s.mem)), File: s.file}
}

func openRegionOf(t testing.TB, w *Workers, r *infer.Region) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.OpenRegion(ctx, r); err != nil {
		t.Fatal(err)
	}
}

func closeRegionOf(t testing.TB, w *Workers, slot uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.CloseRegion(ctx, slot); err != nil {
		t.Error(err)
	}
}

// local are the transports of workers on this host.
func local() map[string]func(t *testing.T) *Workers {
	return map[string]func(t *testing.T) *Workers{
		"lane": func(t *testing.T) *Workers { return start(t, Config{Local: []LocalWorker{as("worker")}}) },
		"stream": func(t *testing.T) *Workers {
			return start(t, Config{Local: []LocalWorker{as("worker")}, UseStream: true})
		},
		"socket": func(t *testing.T) *Workers {
			return start(t, Config{Remote: []RemoteWorker{{Address: startSocket(t)}}})
		},
	}
}

// one is a spec of one input and output.
func one(params map[string]string) Spec {
	s := spec(1, params)
	s.Config.Input, s.Config.Output = s.Config.Input[:1], s.Config.Output[:1]
	return s
}

// placedBatch is a batch of requests with one row of n FP32 each; in and out say where
// each one's tensors lie, the zero Place for in the message.
func placedBatch(n int64, in, out []infer.Place) (*infer.Batch, chan *infer.Result) {
	b, results := newBatch(len(in), int(n))
	row := 4 * n
	data := b.Inputs[0].Segments[0]
	b.Inputs = b.Inputs[:1]
	b.Inputs[0].Segments, b.Inputs[0].Places = nil, make([]infer.Place, len(in))
	for i := range in {
		var segment []byte
		if in[i].IsZero() {
			segment = data[int64(i)*row:][:row]
		}
		b.Inputs[0].Segments = append(b.Inputs[0].Segments, segment)
		b.Inputs[0].Places[i] = in[i]
		if !out[i].IsZero() {
			b.Requests[i].Outputs = []infer.RequestedOutput{{Name: "OUTPUT0", Place: out[i]}}
		}
	}
	return b, results
}

// answers are the requests' answers, however the result holds them.
func answers(t testing.TB, b *infer.Batch, r *infer.Result) []infer.RequestResult {
	t.Helper()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	all := make([]infer.RequestResult, len(b.Requests))
	if r.Responses == nil {
		at := 0
		for i, q := range b.Requests {
			outputs, err := infer.Split(nil, r.Outputs, b.Rows, at, q.Rows)
			if err != nil {
				t.Fatal(err)
			}
			at += q.Rows
			all[i] = infer.RequestResult{Index: i, Response: &infer.Response{Outputs: outputs, Final: true}}
		}
	}
	for _, a := range r.Responses {
		all[a.Index] = a
	}
	return all
}

// Inputs and outputs in regions and in the message, alone and together, at odd offsets.
func TestPlaces(t *testing.T) {
	const n, row = 25, 100
	none := infer.Place{}
	for name, open := range local() {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			v := load(t, w, one(nil))
			defer unload(t, v)
			a, c := newShared(t, 10000), newShared(t, 5000)
			openRegionOf(t, w, a.region(1))
			openRegionOf(t, w, c.region(infer.MaxRegions))
			at := func(off int64) infer.Place { return infer.Place{Region: 1, Offset: off, Size: row} }
			last := infer.Place{Region: infer.MaxRegions, Offset: 4800, Size: 200}
			for _, tc := range []struct{ in, out []infer.Place }{
				{[]infer.Place{at(0)}, []infer.Place{none}},
				{[]infer.Place{at(9900)}, []infer.Place{at(0)}},
				{[]infer.Place{at(3)}, []infer.Place{at(9897)}},
				{[]infer.Place{none}, []infer.Place{last}},
				{[]infer.Place{at(64), none, at(200)}, []infer.Place{none, none, none}},
				{[]infer.Place{none, at(300), none, none}, []infer.Place{last, none, at(5000), none}},
				{[]infer.Place{at(400), at(500)}, []infer.Place{at(6000), at(7000)}},
			} {
				b, results := placedBatch(n, tc.in, tc.out)
				var want [][]byte
				for i, p := range tc.in {
					data := b.Inputs[0].Segments[i]
					if !p.IsZero() {
						data = a.mem[p.Offset:][:row]
					}
					want = append(want, append([]byte{}, data...))
				}
				v.Executor(0).Execute(b)
				r := wait(t, results)
				for i, got := range answers(t, b, r) {
					if got.Err != nil {
						t.Fatal(got.Err)
					}
					o := got.Response.Outputs[0]
					data, p := o.Data, tc.out[i]
					if !p.IsZero() {
						if data != nil || o.Place.Region != p.Region || o.Place.Offset != p.Offset || o.Place.Size != row {
							t.Errorf("%v: request %d's output lies in %+v", tc, i, o.Place)
						}
						mem := a.mem
						if p.Region != 1 {
							mem = c.mem
						}
						data = mem[p.Offset:][:row]
					}
					if !bytes.Equal(data, want[i]) {
						t.Errorf("%v: request %d has other bytes", tc, i)
					}
				}
				r.Memory.Release()
			}
			closeRegionOf(t, w, 1)
			closeRegionOf(t, w, infer.MaxRegions)
			b, results := placedBatch(n, []infer.Place{at(0)}, []infer.Place{none})
			v.Executor(0).Execute(b)
			if r := wait(t, results); r.Err == nil && r.Responses[0].Err == nil {
				t.Error("a closed region is read")
			}
		})
	}
}

// What does not run where a region is goes through the worker that has it.
func TestReadAndWritePlace(t *testing.T) {
	for name, open := range local() {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			s := newShared(t, 9<<20)
			openRegionOf(t, w, s.region(5))
			defer closeRegionOf(t, w, 5)
			for _, p := range []infer.Place{{Region: 5, Size: 9 << 20}, {Region: 5, Offset: 7, Size: 100}, {Region: 5, Offset: 9 << 20}} {
				b, err := w.ReadPlace(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(b.Data, s.mem[p.Offset:][:p.Size]) {
					t.Errorf("%+v has other bytes", p)
				}
				b.Release()
			}
			data := bytes.Repeat([]byte("data"), 5<<18)
			if err := w.WritePlace(t.Context(), infer.Place{Region: 5, Offset: 11, Size: 9<<20 - 11}, data); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(s.mem[11:][:len(data)], data) {
				t.Error("other bytes were written")
			}
			for _, p := range []infer.Place{{Region: 5, Offset: 9 << 20, Size: 1}, {Region: 5, Offset: -1, Size: 1}, {Region: 6, Size: 1}} {
				if b, err := w.ReadPlace(t.Context(), p); err == nil {
					b.Release()
					t.Errorf("%+v was read", p)
				}
				if err := w.WritePlace(t.Context(), p, []byte("x")); err == nil {
					t.Errorf("%+v was written", p)
				}
			}
			if err := s.file.Truncate(100); err != nil {
				t.Fatal(err)
			}
			if _, err := w.ReadPlace(t.Context(), infer.Place{Region: 5, Size: 1 << 20}); infer.CodeOf(err) != infer.InvalidArg ||
				!strings.Contains(err.Error(), "truncated") {
				t.Errorf("truncated memory is read: %v", err)
			}
		})
	}
}

func TestRegionRefused(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	s := newShared(t, 100)
	large := s.region(1)
	large.Size = 101
	if err := w.OpenRegion(t.Context(), large); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("larger than its file: %v", err)
	}
	openRegionOf(t, w, s.region(1)) // the slot is free
	if err := w.OpenRegion(t.Context(), s.region(1)); err == nil {
		t.Error("a slot is used twice")
	}
	closeRegionOf(t, w, 1)
	if err := w.CloseRegion(t.Context(), 1); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("closed twice: %v", err)
	}
	gpu := &infer.Region{Slot: 2, Name: "device", Size: 10, CUDA: &infer.CUDAHandle{Device: 3}}
	if err := w.OpenRegion(t.Context(), gpu); infer.CodeOf(err) != infer.Unsupported || !strings.Contains(err.Error(), "no worker of this host has GPU 3") {
		t.Errorf("a GPU that is not there: %v", err)
	}
	far := start(t, Config{Remote: []RemoteWorker{{Address: startRemote(t, workers.Config{Insecure: true})}}})
	if err := far.OpenRegion(t.Context(), s.region(1)); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("opened on another host: %v", err)
	}
}

// Calls that are given up leave no slot behind that can't be used, and no file.
func TestRegionCallsGivenUp(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, one(nil))
	defer unload(t, v)
	mem := newShared(t, 4096)
	before := openFiles(t)
	for round := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round)*5*time.Microsecond)
		err := w.OpenRegion(ctx, mem.region(1))
		if err == nil {
			err = w.CloseRegion(ctx, 1)
		}
		cancel()
		if err != nil && infer.CodeOf(err) != infer.Cancelled {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	openRegionOf(t, w, mem.region(1))
	b, results := placedBatch(16, []infer.Place{{Region: 1, Size: 64}}, []infer.Place{{Region: 1, Offset: 64, Size: 64}})
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if a := answers(t, b, r); a[0].Err != nil || !bytes.Equal(mem.mem[:64], mem.mem[64:128]) {
		t.Errorf("in place: %v", a[0].Err)
	}
	r.Memory.Release()
	closeRegionOf(t, w, 1)
	if n := openFiles(t); n > before {
		t.Errorf("%d files are open, were %d", n, before)
	}
}

// A region whose closing is given up before the worker hears of it is closed all the same,
// and its slot may be another's meanwhile.
func TestCloseRegionGivenUp(t *testing.T) {
	for _, reused := range []bool{false, true} {
		w := start(t, Config{Local: []LocalWorker{as("worker")}})
		files := func() (n int) {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.States()[0].PID))
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(string(maps), "memfd:client")
		}
		mem := newShared(t, 4096)
		openRegionOf(t, w, mem.region(1))
		if files() == 0 {
			t.Skip("this worker does not map regions: it is built without cgo")
		}
		<-w.workers[0].regionTurn // somebody else is at it
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := w.CloseRegion(ctx, 1); infer.CodeOf(err) != infer.Cancelled {
			t.Fatalf("closed: %v", err)
		}
		cancel()
		w.workers[0].regionTurn <- struct{}{}
		want := 0
		if reused {
			openRegionOf(t, w, mem.region(1))
			want = 1
		}
		eventually(t, "the worker has closed the region", func() bool { return files() == want })
	}
}
