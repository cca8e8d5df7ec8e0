package workers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
)

// TestLaneKeepsNoMemory runs what a backend may do with memory over and over in an
// arena that a leak of any of it would fill.
func TestLaneKeepsNoMemory(t *testing.T) {
	tensor := func(data []byte) []infer.Tensor {
		return []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{1, int64(len(data))}, Data: data}}
	}
	both := func(data []byte) []infer.Tensor {
		return []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{2, int64(len(data) / 2)}, Data: data}}
	}
	doings := map[string]func(b backend.Batch, mem []byte) error{
		"not used":      func(b backend.Batch, _ []byte) error { return b.Outputs(both(make([]byte, 100))) },
		"used":          func(b backend.Batch, mem []byte) error { return b.Outputs(both(mem)) },
		"then an error": func(backend.Batch, []byte) error { return errors.New("no") },
		"a panic":       func(backend.Batch, []byte) error { panic("no") },
		"a wrong size":  func(b backend.Batch, mem []byte) error { return b.Outputs(append(both(mem), tensor(mem)...)) },
		"shared by two": func(b backend.Batch, mem []byte) error {
			return join(b.Respond(0, tensor(mem[:64]), nil, true), b.Respond(1, tensor(mem[64:]), nil, true))
		},
		"shared by parts": func(b backend.Batch, mem []byte) error {
			return join(b.Respond(0, tensor(mem[:64]), nil, false), b.Respond(1, tensor(mem[64:]), nil, false), b.Outputs(both(mem)))
		},
	}
	for name, do := range doings {
		t.Run(name, func(t *testing.T) {
			s := &scripted{}
			s.execute.Store(func(b backend.Batch) error {
				mem, err := b.Alloc(4096)
				if err != nil {
					t.Errorf("Alloc: %v", err)
					return err
				}
				return do(b, mem)
			})
			g := startLocal(t, workers.Config{MemoryWait: time.Millisecond}, scriptedDeps(s), 64<<10)
			g.hello(t, true)
			g.load(t, loadRequest(1, fp32Config(nil), 0))
			batch, data := rowsBatch(1, 2, 4)
			p := g.layOut(t, batch, data)
			for range 100 {
				g.post(0, p)
				for more := true; more; {
					c, res := g.result(t)
					if c.NoMemory {
						t.Fatalf("no memory for a result: %+v", c)
					}
					more = res.More
					g.lane.Release(c.Token)
				}
			}
		})
	}
}

// TestLaneIsFilledToTheByte answers a batch with all the memory that there is: what tells of
// the answers has room of its own, whatever the arena's size is.
func TestLaneIsFilledToTheByte(t *testing.T) {
	for _, size := range []int{64 << 10, 100 << 10, 1 << 20, 1000 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := &scripted{}
			s.execute.Store(func(b backend.Batch) error {
				mem, err := b.Alloc(int64(size))
				if err != nil {
					return err
				}
				for i := range mem {
					mem[i] = byte(i)
				}
				return b.Outputs([]infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{2, int64(size / 2)}, Data: mem}})
			})
			g := startLocal(t, workers.Config{MemoryWait: time.Minute}, scriptedDeps(s), int64(size))
			g.hello(t, true)
			g.load(t, loadRequest(1, fp32Config(nil), 0))
			batch, data := rowsBatch(1, 2, 4)
			p := g.layOut(t, batch, data)
			for range 3 {
				g.post(0, p)
				c, res := g.result(t)
				if c.NoMemory || res.Err != "" || len(res.Outputs) != 1 {
					t.Fatalf("completion %+v, result %+v", c, res)
				}
				if got := g.data(t, res.Outputs[0]); len(got) != size || got[size-1] != byte(size-1) {
					t.Errorf("%d bytes, want %d", len(got), size)
				}
				g.lane.Release(c.Token)
			}
		})
	}
}
