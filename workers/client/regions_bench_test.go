package client

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// BenchmarkRegion is one request of 600 KB in and out on one instance of the identity
// backend: in the request arena and answered in the worker's, in a client's region both
// ways, and with integers, which are copied out of the region.
func BenchmarkRegion(b *testing.B) {
	const elements = 150528
	for _, tc := range []struct {
		name     string
		region   bool
		datatype infer.Datatype
	}{{"arena", false, infer.FP32}, {"region", true, infer.FP32}, {"integers", true, infer.Int32}} {
		b.Run(tc.name, func(b *testing.B) {
			w := start(b, Config{Local: []LocalWorker{as("worker")}})
			s := one(nil)
			s.Config.Input[0].DataType, s.Config.Output[0].DataType = 11, 11
			v := load(b, w, s)
			defer unload(b, v)
			mem := newShared(b, 8*elements)
			openRegionOf(b, w, mem.region(1))
			in, out := infer.Place{Region: 1, Size: 4 * elements}, infer.Place{Region: 1, Offset: 4 * elements, Size: 4 * elements}
			if !tc.region {
				in, out = infer.Place{}, infer.Place{}
			}
			batch, _ := placedBatch(elements, []infer.Place{in}, []infer.Place{out})
			batch.Inputs[0].Datatype = tc.datatype
			if !tc.region {
				arena, err := w.Memory().Alloc(4 * elements)
				if err != nil {
					b.Fatal(err)
				}
				defer w.Memory().Free(arena)
				batch.Inputs[0].Segments[0] = arena
			}
			runBatches(b, w, v, batch)
		})
	}
}

// runBatches executes a batch b.N times, one after the other.
func runBatches(b *testing.B, w *Workers, v *Version, batch *infer.Batch) {
	done, left := make(chan error, 1), 0
	e := v.Executor(0)
	batch.Deliver = func(r *infer.Result) {
		err := r.Err
		if err == nil && r.Responses != nil {
			err = r.Responses[0].Err
		}
		r.Memory.Release()
		if left--; left <= 0 || err != nil {
			done <- err
			return
		}
		batch.ID++
		e.Execute(batch) // as a scheduler does that has more waiting
	}
	pid := int(w.States()[0].PID)
	b.ReportAllocs()
	before := [2]int64{ticks(b, pid), ticks(b, unix.Getpid())}
	b.ResetTimer()
	left = b.N
	e.Execute(batch)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	worker, gateway := ticks(b, pid)-before[0], ticks(b, unix.Getpid())-before[1]
	b.ReportMetric(float64(worker)*1e4/float64(b.N), "worker-cpu-us/op")
	b.ReportMetric(float64(gateway)*1e4/float64(b.N), "gateway-cpu-us/op")
}
