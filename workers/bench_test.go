package workers_test

import (
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/shm"
)

// BenchmarkLane measures a batch from the mailbox to its completion and back, both
// ends in this process: the wire, the execution, the copy of identity, two futexes.
func BenchmarkLane(b *testing.B) {
	for _, bc := range []struct{ requests, floats int }{{1, 16}, {1, 512}, {8, 512}, {32, 512}, {1, 150000}} {
		b.Run(fmt.Sprintf("requests=%d/floats=%d", bc.requests, bc.floats), func(b *testing.B) {
			g := startLocal(b, workers.Config{}, workers.Deps{Backends: identityOnly()}, 16<<20)
			g.hello(b, true)
			g.load(b, loadRequest(1, fp32Config(nil), 0))
			batch, data := rowsBatch(1, bc.requests, bc.floats)
			p := g.layOut(b, batch, data)
			var c [1]shm.Completion
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				g.post(0, p)
				if _, err := g.lane.Completions(c[:], 0); err != nil || c[0].NoMemory {
					b.Fatal(err, c[0])
				}
				g.lane.Release(c[0].Token)
			}
		})
	}
}

// BenchmarkExecution measures what the worker itself adds to a batch, without futexes.
func BenchmarkExecution(b *testing.B) {
	for _, requests := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("requests=%d", requests), func(b *testing.B) {
			s := &scripted{}
			run := make(chan func(backend.Batch) error)
			s.execute.Store(func(batch backend.Batch) error { return (<-run)(batch) })
			g := startLocal(b, workers.Config{}, scriptedDeps(s), 16<<20)
			g.hello(b, true)
			g.load(b, loadRequest(1, fp32Config(nil), 0))
			batch, data := rowsBatch(1, requests, 16)
			g.post(0, g.layOut(b, batch, data))
			out := []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{int64(requests), 16}}}
			run <- func(x backend.Batch) error {
				b.ReportAllocs()
				for b.Loop() {
					workers.Again(x, out)
				}
				return nil
			}
			g.result(b)
		})
	}
}
