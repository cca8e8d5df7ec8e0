package drive_test

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

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// mixed is what a model has besides, while it is stopped in the middle of its work.
type mixed struct {
	cfg     dynamic.Config
	limited bool
	patient bool // the drain waits for everything
}

// TestStoppedInTheMiddle has bursts, calls that wait, calls that leave, instances that go down
// with and without what they have, refusals by full lines and by time, and in the middle of it
// all the model is stopped: every request ends once, all memory and every reference comes
// back, the books are even, and other models can have what the limiter gave.
func TestStoppedInTheMiddle(t *testing.T) {
	short := schedule.QueuePolicy{Set: true, Timeout: 150 * time.Microsecond, MaxSize: 6}
	for name, m := range map[string]mixed{
		"plain": {}, "patient": {patient: true},
		"delay":   {cfg: dynamic.Config{MaxQueueDelay: 60 * time.Microsecond, Preferred: []int{4}}, patient: true},
		"ordered": {cfg: dynamic.Config{PreserveOrdering: true, Policy: short}},
		"short":   {cfg: dynamic.Config{Policy: short}, patient: true},
		"fair":    {cfg: dynamic.Config{Policy: short, Levels: schedule.Levels{Count: 3, Default: 2, Fair: 2}}},
		"limited": {limited: true}, "limited, patient": {limited: true, patient: true, cfg: dynamic.Config{Policy: short}},
		"limited, ordered": {limited: true, cfg: dynamic.Config{PreserveOrdering: true, MaxQueueDelay: 30 * time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				synctest.Test(t, func(t *testing.T) { stoppedInTheMiddle(t, m) })
			}
		})
	}
}

// mixture is one run.
type mixture struct {
	t        *testing.T
	s        *dynamic.Scheduler
	asked    atomic.Int64
	ended    atomic.Int64
	served   atomic.Int64
	released atomic.Int64
}

func stoppedInTheMiddle(t *testing.T, m mixed) {
	const instances = 3
	mem, obs, l := newMemory(64<<20), &counts{}, ratelimit.New([]ratelimit.Resource{{Name: "R", Count: 2, Device: ratelimit.Every}})
	var answered sync.Map
	var running sync.WaitGroup
	var s atomic.Pointer[dynamic.Scheduler]
	var execs []infer.Executor
	for i := range instances {
		execs = append(execs, &wild{t: t, s: &s, index: i, max: 8, seen: &answered, faults: true, wg: &running})
	}
	d := deps(mem, obs, execs...)
	if m.limited {
		d.Limiter = limiter(l, needs(instances, 0)...)
	}
	x := &mixture{t: t, s: batcher(t, m.cfg, d)}
	s.Store(x.s)
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() { x.burst(c) })
		wg.Go(func() { x.callers(c) })
	}
	over := make(chan struct{})
	flaps := sync.WaitGroup{}
	flaps.Go(func() { x.flap(over, instances) })
	time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(80))*time.Microsecond)
	if m.patient {
		ctx = t.Context()
	}
	err := x.s.Drain(ctx)
	cancel()
	if err != nil && m.patient || x.s.Pending() != 0 {
		t.Errorf("drain: %v, %d wait", err, x.s.Pending())
	}
	wg.Wait()
	close(over)
	flaps.Wait()
	running.Wait()
	synctest.Wait()
	check(t, "ends", x.ended.Load(), x.asked.Load())
	check(t, "references", x.released.Load(), x.asked.Load())
	check(t, "queued", obs.queued.Load(), 0)
	check(t, "busy", x.s.Busy(), 0)
	check(t, "ready", x.s.Ready(), instances)
	check(t, "memory", mem.inUse(), 0)
	x.others(l)
}

// others sees that everything that there is can be had.
func (x *mixture) others(l *ratelimit.Limiter) {
	m, err := l.Register(needs(2, 0), func(int) { x.t.Error("a grant came late") })
	if err != nil {
		x.t.Fatal(err)
	}
	check(x.t, "the first", m.Want(0), true)
	check(x.t, "the second", m.Want(1), true)
	m.Flush()
	m.Close()
}

// request is a random one whose reference is counted.
func (x *mixture) request(id int) *infer.Request {
	r := randomRequest(id)
	if x.asked.Add(1); rand.IntN(8) == 0 {
		r.Timeout = time.Duration(1+rand.IntN(100)) * time.Microsecond
	}
	r.Caller = fmt.Sprint(rand.IntN(3))
	r.Memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { x.released.Add(1) })
	return r
}

// judge holds an end against what is allowed.
func (x *mixture) judge(req *infer.Request, answers int, err error) {
	x.ended.Add(1)
	switch {
	case err == nil && answers == 1:
		x.served.Add(1)
	case err == nil, answers > 1:
		x.t.Errorf("%s: %d answers, %v", req.ID, answers, err)
	case infer.CodeOf(err) == infer.Cancelled, errors.Is(err, infer.ErrWorkerLost), infer.CodeOf(err) == infer.Unavailable:
	default:
		x.t.Errorf("%s: %v", req.ID, err)
	}
}

func (x *mixture) send(req *infer.Request, answers *int) infer.SendFunc {
	return func(r *infer.Response) error {
		*answers++
		defer r.Memory.Release()
		return checkEcho(req, r)
	}
}

// callers asks one by one, and leaves now and then.
func (x *mixture) callers(c int) {
	for k := range 20 {
		ctx, cancel := context.WithCancel(x.t.Context())
		if rand.IntN(4) == 0 {
			stop := time.AfterFunc(time.Duration(rand.IntN(80))*time.Microsecond, cancel)
			defer stop.Stop()
		}
		req, answers := x.request(c*20+k), 0
		err := do(ctx, x.t, x.s, req, x.send(req, &answers))
		cancel()
		x.judge(req, answers, err)
		req.Memory.Release()
	}
}

// burst starts several at once, whose contexts may end before the burst does.
func (x *mixture) burst(c int) {
	var b loop.Burst
	for k := range 12 {
		var ends []func()
		b.Open()
		for i := range 1 + rand.IntN(6) {
			req, answers := x.request(c*100+k*6+i), new(int)
			req.Burst = &b
			ctx := &lifetime.Context{}
			to := newSink(x.t, x.send(req, answers))
			to.large = rand.IntN(4) == 0
			if !x.s.Start(ctx, req, to) { // where answers keep an order
				b.Close() // who waits for an answer must not hold it open
				to.done <- x.s.Do(ctx, req, x.send(req, answers))
			}
			if rand.IntN(4) == 0 {
				ctx.End(context.Canceled)
			}
			ends = append(ends, func() {
				err := <-to.done
				ctx.End(context.Canceled)
				x.judge(req, *answers, err)
				req.Memory.Release()
			})
			if rand.IntN(5) == 0 {
				time.Sleep(time.Duration(rand.IntN(40)) * time.Microsecond)
			}
		}
		b.Close()
		for _, end := range ends {
			end()
		}
	}
}

// flap takes instances out of service for a moment, whether they have a batch or not.
func (x *mixture) flap(over <-chan struct{}, instances int) {
	for {
		i := rand.IntN(instances)
		x.s.InstanceDown(i)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Microsecond)
		x.s.InstanceUp(i)
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rand.IntN(100)) * time.Microsecond):
		}
	}
}
