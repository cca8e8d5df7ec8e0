package drive_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

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

// cpu is the process's processor time, which a busy machine falsifies less.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func benchmark(b *testing.B, f *fake, parallel int) {
	mem, err := shm.NewHeap(64 << 20)
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Close()
	s, err := dynamic.New(dynamic.Config{Model: model(32)}, deps(mem, &counts{}, f))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	from := cpu(b)
	defer func() { b.ReportMetric(float64(cpu(b)-from)/float64(b.N), "cpu-ns/op") }()
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

func oneLimited(l *ratelimit.Limiter, d schedule.Deps) (schedule.Scheduler, error) {
	d.Limiter = limiter(l, ratelimit.Instance{Needs: []ratelimit.Need{{Name: "R", Count: 1}}})
	return direct.New(direct.Config{Model: model(32)}, d)
}

// pair gives every other request to the second of two models.
type pair struct {
	schedule.Scheduler
	second schedule.Scheduler
	n      atomic.Int64
}

func (p *pair) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	if p.n.Add(1)%2 == 0 {
		return p.second.Do(ctx, req, send)
	}
	return p.Scheduler.Do(ctx, req, send)
}

// BenchmarkSchedulers is what each scheduler costs beside the default one, with callers
// that wait for one instance on another goroutine.
func BenchmarkSchedulers(b *testing.B) {
	answer := answers(make([]byte, 512*32))
	levels := schedule.Levels{Count: 3, Default: 2, Own: map[uint64]*schedule.QueuePolicy{1: {Set: true, Timeout: time.Minute}}}
	for _, c := range []struct {
		name string
		make func(schedule.Deps) (schedule.Scheduler, error)
	}{
		{"direct", func(d schedule.Deps) (schedule.Scheduler, error) {
			return direct.New(direct.Config{Model: model(32)}, d)
		}},
		{"dynamic", func(d schedule.Deps) (schedule.Scheduler, error) {
			return dynamic.New(dynamic.Config{Model: model(32)}, d)
		}},
		{"levels", func(d schedule.Deps) (schedule.Scheduler, error) {
			return dynamic.New(dynamic.Config{Model: model(32), Levels: levels}, d)
		}},
		{"limited", func(d schedule.Deps) (schedule.Scheduler, error) { return oneLimited(ratelimit.New(nil), d) }},
		{"contended", func(d schedule.Deps) (schedule.Scheduler, error) { // each batch waits for the other model's
			l := ratelimit.New(nil)
			first, err := oneLimited(l, d)
			if err != nil {
				return nil, err
			}
			second, err := oneLimited(l, d)
			return &pair{Scheduler: first, second: second}, err
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			mem, err := shm.NewHeap(64 << 20)
			if err != nil {
				b.Fatal(err)
			}
			defer mem.Close()
			work := make(chan *infer.Batch, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for x := range work {
					x.Deliver(answer(x))
				}
			}()
			s, err := c.make(deps(mem, &counts{}, &fake{executed: func(x *infer.Batch) { work <- x }}))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { close(work); <-done }()
			b.ReportAllocs()
			b.SetParallelism(8)
			from := cpu(b)
			b.RunParallel(func(pb *testing.PB) {
				req := benchRequest()
				for n := uint64(0); pb.Next(); n++ {
					req.Priority = 1 + n%3
					if err := s.Do(b.Context(), req, drop); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(cpu(b)-from)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkDelay is how long a lone request takes under a delay of 200 us: the clocks'
// lateness.
func BenchmarkDelay(b *testing.B) {
	alarm, err := schedule.NewAlarm()
	if err != nil {
		b.Fatal(err)
	}
	defer alarm.Close()
	answer := answers(make([]byte, 512*32))
	for name, clock := range map[string]schedule.Clock{"alarm": alarm, "go": schedule.GoClock{}} {
		b.Run(name, func(b *testing.B) {
			d := deps(nil, nil, &fake{executed: func(x *infer.Batch) { x.Deliver(answer(x)) }})
			d.Clock = clock
			s, err := dynamic.New(dynamic.Config{Model: model(32), MaxQueueDelay: 200 * time.Microsecond}, d)
			if err != nil {
				b.Fatal(err)
			}
			req := benchRequest()
			for b.Loop() {
				if err := s.Do(b.Context(), req, drop); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
