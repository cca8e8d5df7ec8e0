package drive_test

import (
	"context"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// heap is a schedule.Memory without bookkeeping.
type heap struct{ b []byte }

func (h *heap) Alloc(n int64) ([]byte, error) {
	if int64(len(h.b)) < n {
		h.b = make([]byte, n)
	}
	return h.b[:n], nil
}
func (h *heap) Free([]byte)       {}
func (h *heap) Holds([]byte) bool { return false }

func benchRequest() *infer.Request {
	return &infer.Request{Rows: 1, Inputs: []infer.Tensor{{Name: "A", Datatype: infer.FP32, Shape: []int64{1, 512},
		Data: make([]byte, 2048)}}}
}

func drop(r *infer.Response) error {
	r.Memory.Release()
	return nil
}

// answers makes a result without allocating more than one must.
func answers(out []byte) func(*infer.Batch) *infer.Result {
	return func(b *infer.Batch) *infer.Result {
		return &infer.Result{Outputs: []infer.Tensor{{Name: "O", Datatype: infer.FP32, Shape: []int64{int64(b.Rows), 128},
			Data: out[:512*b.Rows]}}}
	}
}

func benchmark(b *testing.B, f *fake, parallel int) {
	s, err := dynamic.New(dynamic.Config{Model: model(32)}, deps(&heap{}, &counts{}, f))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	if parallel == 1 {
		req := benchRequest()
		for b.Loop() {
			if err := s.Do(ctx, req, drop); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.SetParallelism(parallel / 2)
	b.RunParallel(func(pb *testing.PB) {
		req := benchRequest()
		for pb.Next() {
			if err := s.Do(ctx, req, drop); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkDo counts the executor's three allocations for each batch too.
func BenchmarkDo(b *testing.B) {
	answer := answers(make([]byte, 512*32))
	b.Run("at-once", func(b *testing.B) {
		benchmark(b, &fake{executed: func(x *infer.Batch) { x.Deliver(answer(x)) }}, 1)
	})
	other := func(b *testing.B, parallel int) {
		work := make(chan *infer.Batch, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for x := range work {
				x.Deliver(answer(x))
			}
		}()
		benchmark(b, &fake{executed: func(x *infer.Batch) { work <- x }}, parallel)
		close(work)
		<-done
	}
	b.Run("other-goroutine/c=1", func(b *testing.B) { other(b, 1) })
	b.Run("other-goroutine/c=8", func(b *testing.B) { other(b, 8) })
	b.Run("other-goroutine/c=32", func(b *testing.B) { other(b, 32) })
}
