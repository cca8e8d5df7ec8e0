package client

import (
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"golang.org/x/sys/unix"
)

// BenchmarkUnderLoad is one instance with eight callers that each work for 20 us
// between two requests, as front ends do: what a goroutine that blocks in a futex
// costs beside busy ones.
func BenchmarkUnderLoad(b *testing.B) {
	w := start(b, Config{Local: []LocalWorker{as("worker")}})
	s := spec(1, nil)
	s.Config.Input, s.Config.Output = s.Config.Input[:1], s.Config.Output[:1]
	v := load(b, w, s)
	defer unload(b, v)
	e := v.Executor(0)
	mem, err := w.Memory().Alloc(2048)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Memory().Free(mem)
	var mu sync.Mutex
	var queue []*infer.Batch
	busy := false
	next := func(done bool) {
		mu.Lock()
		if done {
			busy = false
		}
		var batch *infer.Batch
		if !busy && len(queue) > 0 {
			batch, queue, busy = queue[0], queue[1:], true
		}
		mu.Unlock()
		if batch != nil {
			e.Execute(batch)
		}
	}
	pid := int(w.States()[0].PID)
	before := [2]int64{ticks(b, pid), ticks(b, unix.Getpid())}
	b.ResetTimer()
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			batch, _ := newBatch(1, 512)
			batch.Inputs = batch.Inputs[:1]
			batch.Inputs[0].Segments = [][]byte{mem}
			answer := make(chan *infer.Result, 1)
			batch.Deliver = func(r *infer.Result) {
				next(true)
				answer <- r
			}
			for range b.N / 8 {
				for t := time.Now(); time.Since(t) < 20*time.Microsecond; {
				}
				batch.ID = lastBatch.Add(1)
				mu.Lock()
				queue = append(queue, batch)
				mu.Unlock()
				next(false)
				r := <-answer
				if r.Err != nil {
					b.Error(c, r.Err)
					return
				}
				r.Memory.Release()
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	worker, gateway := ticks(b, pid)-before[0], ticks(b, unix.Getpid())-before[1]
	b.ReportMetric(float64(worker)*1e4/float64(b.N), "worker-cpu-us/op")
	b.ReportMetric(float64(gateway)*1e4/float64(b.N), "gateway-cpu-us/op")
}
