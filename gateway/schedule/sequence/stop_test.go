package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// A model is stopped in the middle of sequences whose callers leave and whose workers end:
// every request ends once, and nothing is left behind.
func TestStoppedInTheMiddle(t *testing.T) {
	for name, cfg := range map[string]func(*sequence.Config){
		"direct": func(c *sequence.Config) {
			c.Direct = sequence.Direct{Utilization: 0.5, MaxQueueDelay: 30 * time.Microsecond}
		},
		"oldest": func(c *sequence.Config) {
			c.Oldest = &sequence.Oldest{Candidates: 6, MaxQueueDelay: 20 * time.Microsecond}
		},
		"ordered": func(c *sequence.Config) { c.Oldest = &sequence.Oldest{Candidates: 3, PreserveOrdering: true} },
		"again":   func(c *sequence.Config) { c.Iterative = true },
		"again, oldest": func(c *sequence.Config) {
			c.Iterative, c.Oldest = true, &sequence.Oldest{Candidates: 6, PreserveOrdering: true}
		},
	} {
		for _, patient := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/patient=%v", name, patient), func(t *testing.T) {
				for range 8 {
					synctest.Test(t, func(t *testing.T) { stopped(t, cfg, patient) })
				}
			})
		}
	}
}

func stopped(t *testing.T, set func(*sequence.Config), patient bool) {
	cfg := config()
	set(&cfg)
	if rand.IntN(2) == 0 {
		cfg.Idle = 300 * time.Microsecond
	}
	mem, seen := &memory{out: map[*byte]int{}}, &counts{}
	var adders []*adder
	for range 3 {
		a := &adder{loses: 25, each: cfg.Iterative || rand.IntN(2) == 0}
		if cfg.Iterative {
			a.again = 3
		}
		adders = append(adders, a)
	}
	s, running := begin(t, cfg, seen, mem, adders...)
	var wg sync.WaitGroup
	var asked, ended, refs atomic.Int64
	for caller := range 24 {
		wg.Go(func() {
			for k := range 10 {
				walk(t, s, uint64(1+caller*100+k), cfg.Iterative, &asked, &ended, &refs)
			}
		})
	}
	time.Sleep(time.Duration(rand.IntN(1200)) * time.Microsecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(60))*time.Microsecond)
	if patient {
		ctx = t.Context()
	}
	err := s.Drain(ctx)
	cancel()
	if err != nil && patient || s.Pending() != 0 {
		t.Errorf("drain: %v, %d wait", err, s.Pending())
	}
	wg.Wait()
	running.Wait()
	synctest.Wait()
	if ended.Load() != asked.Load() || refs.Load() != asked.Load() {
		t.Errorf("%d requests, %d ends, %d references back", asked.Load(), ended.Load(), refs.Load())
	}
	if seen.queued.Load() != 0 || len(mem.out) != 0 || s.Busy() != 0 {
		t.Errorf("%d queued, %d blocks out, %d busy", seen.queued.Load(), len(mem.out), s.Busy())
	}
}

// walk asks the steps of one sequence, of an iterative model one, and leaves now and then.
func walk(t *testing.T, s *sequence.Scheduler, id uint64, iterative bool, asked, ended, refs *atomic.Int64) {
	for step := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		stop := func() bool { return true }
		if rand.IntN(8) == 0 {
			stop = time.AfterFunc(time.Duration(rand.IntN(80))*time.Microsecond, cancel).Stop
		}
		req := request(id, step, step == 0 && !iterative, step == 3 && !iterative)
		if iterative {
			req.Correlation.ID = 0
		}
		if rand.IntN(6) == 0 {
			req.Timeout = time.Duration(1+rand.IntN(150)) * time.Microsecond
		}
		req.Memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { refs.Add(1) })
		asked.Add(1)
		_, answers, err := do(ctx, s, req)
		ended.Add(1)
		stop()
		cancel()
		req.Memory.Release()
		switch {
		case err == nil && answers == 1:
			continue
		case err == nil || answers > 1:
			t.Errorf("%s: %d answers, %v", req.ID, answers, err)
		case step > 0 && infer.CodeOf(err) == infer.InvalidArg: // its sequence was idle for too long, or ended at the stop
		case infer.CodeOf(err) == infer.Cancelled, infer.CodeOf(err) == infer.Unavailable, errors.Is(err, infer.ErrWorkerLost):
		default:
			t.Errorf("%s: %v", req.ID, err)
		}
		return
	}
}
