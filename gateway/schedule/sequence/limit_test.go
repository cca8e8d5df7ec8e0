package sequence_test

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// exclusive is an adder that sees how many batches run at a time.
type exclusive struct {
	*adder
	running, most *atomic.Int64
}

func (x exclusive) Execute(b *infer.Batch) {
	if n := x.running.Add(1); n > x.most.Load() {
		x.most.Store(n)
	}
	deliver := b.Deliver
	b.Deliver = func(r *infer.Result) {
		x.running.Add(-1)
		deliver(r)
	}
	x.adder.Execute(b)
}

// Sequences of two models that share one resource all end, right, one batch at a time,
// also where workers end and callers leave.
func TestSequencesShareAResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		var running, most, right, lost atomic.Int64
		var callers, workers sync.WaitGroup
		var all []*sequence.Scheduler
		for i, cfg := range []sequence.Config{config(), config()} {
			cfg.Idle = 2 * time.Millisecond
			if i > 0 {
				cfg.Oldest = &sequence.Oldest{Candidates: 8, MaxQueueDelay: 20 * time.Microsecond, Preferred: []int{2, 4}}
			}
			s := sharing(t, l, cfg, &running, &most, &workers)
			all = append(all, s)
			for caller := range 10 {
				callers.Go(func() {
					for k := range 6 {
						oneSequence(t, s, uint64(1+caller*100+k), &right, &lost)
					}
				})
			}
		}
		callers.Wait()
		for _, s := range all {
			if err := s.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		}
		workers.Wait()
		if most.Load() != 1 || right.Load() < 350 || lost.Load() > 40 {
			t.Errorf("%d batches at a time, %d right answers, %d lost", most.Load(), right.Load(), lost.Load())
		}
	})
}

// sharing is a scheduler with two instances, each of which needs all of one resource.
func sharing(t *testing.T, l *ratelimit.Limiter, cfg sequence.Config, running, most *atomic.Int64, wg *sync.WaitGroup) *sequence.Scheduler {
	t.Helper()
	needs := ratelimit.Instance{Needs: []ratelimit.Need{{Name: "R", Count: 1, Device: ratelimit.Global}}}
	d := schedule.Deps{Clock: schedule.GoClock{}, IDs: new(atomic.Uint64), Log: slog.New(slog.DiscardHandler)}
	d.Limiter = func(granted func(i int)) (schedule.Limiter, error) {
		return l.Register([]ratelimit.Instance{needs, needs}, granted)
	}
	made := &atomic.Pointer[sequence.Scheduler]{}
	for i := range 2 {
		a := &adder{t: t, s: made, index: i, loses: 40, wg: wg, count: map[uint64]int{}}
		d.Executors = append(d.Executors, exclusive{a, running, most})
	}
	s, err := sequence.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	made.Store(s)
	return s
}
