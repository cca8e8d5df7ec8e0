package drive_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// limiter registers instances with l when a driver is made.
func limiter(l *ratelimit.Limiter, instances ...ratelimit.Instance) schedule.NewLimiter {
	return func(granted func(i int)) (schedule.Limiter, error) { return l.Register(instances, granted) }
}

// needs are instances that need one R each.
func needs(instances int, priority uint32) []ratelimit.Instance {
	one := ratelimit.Instance{Needs: []ratelimit.Need{{Name: "R", Count: 1, Device: ratelimit.Global}}, Priority: priority}
	return slices.Repeat([]ratelimit.Instance{one}, instances)
}

// limited is a dynamic batcher whose instances need one R each.
func limited(t *testing.T, l *ratelimit.Limiter, cfg dynamic.Config, priority uint32, execs ...infer.Executor) *dynamic.Scheduler {
	t.Helper()
	d := deps(newMemory(1<<20), nil, execs...)
	d.Limiter = limiter(l, needs(len(execs), priority)...)
	return batcher(t, cfg, d)
}

// A driver whose limiter can't be made is not made, and nothing stays registered.
func TestLimiterRefuses(t *testing.T) {
	l := ratelimit.New([]ratelimit.Resource{{Name: "R", Count: 0, Device: ratelimit.Every}})
	d := deps(newMemory(1<<20), nil, &fake{})
	d.Limiter = limiter(l, needs(1, 0)...)
	if s, err := dynamic.New(dynamic.Config{Model: model(8)}, d); s != nil || infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v, %v; want InvalidArg", s, err)
	}
}

func TestLimitedModelsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		fa, fb := &fake{}, &fake{}
		a, b := limited(t, l, dynamic.Config{}, 1, fa), limited(t, l, dynamic.Config{}, 1, fb)
		var callers []*caller
		ask := func(s schedule.Scheduler, id string) {
			callers = append(callers, start(t.Context(), s, request(id, 1)))
			synctest.Wait()
		}
		ask(a, "x")
		ask(b, "y")
		ask(a, "v")
		ask(b, "z")
		check(t, "a has", fa.ids(), "[x]")
		check(t, "b has", fb.ids(), "[]")
		fa.answer(t)
		synctest.Wait()
		check(t, "a has", fa.ids(), "[x]")
		check(t, "b has", fb.ids(), "[yz]") // z came while b stood in line
		fb.answer(t)
		synctest.Wait()
		check(t, "a has", fa.ids(), "[x v]")
		fa.answer(t)
		for _, c := range callers {
			check(t, "error", c.wait(t), nil)
		}
		check(t, "drain of a", a.Drain(t.Context()), nil)
		check(t, "drain of b", b.Drain(t.Context()), nil)
	})
}

// TestWishesEnd has what stands in line go away in every way there is: what it would
// have been granted goes to the next.
func TestWishesEnd(t *testing.T) {
	for name, end := range map[string]func(b *dynamic.Scheduler, leave func()){
		"its caller leaves":    func(_ *dynamic.Scheduler, leave func()) { leave() },
		"its instance is down": func(b *dynamic.Scheduler, _ func()) { b.InstanceDown(0) },
		"its model unloads": func(b *dynamic.Scheduler, _ func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = b.Drain(ctx) // says that it had to fail a request
		},
		"its time is over": func(*dynamic.Scheduler, func()) { time.Sleep(50 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.New(nil)
				fa, fb, fc := &fake{}, &fake{}, &fake{}
				a := limited(t, l, dynamic.Config{}, 1, fa)
				b := limited(t, l, dynamic.Config{Policy: schedule.QueuePolicy{Set: true, Timeout: 20 * time.Millisecond}}, 1, fb)
				c := limited(t, l, dynamic.Config{}, 1, fc)
				ca := start(t.Context(), a, request("a", 1))
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cb := start(ctx, b, request("b", 1))
				synctest.Wait()
				cc := start(t.Context(), c, request("c", 1))
				synctest.Wait()
				end(b, cancel)
				synctest.Wait()
				fa.answer(t)
				check(t, "a", ca.wait(t), nil)
				synctest.Wait()
				check(t, "b has", fb.ids(), "[]")
				fc.answer(t)
				check(t, "c", cc.wait(t), nil)
				cancel()
				if cb.wait(t) == nil {
					t.Error("b was answered")
				}
			})
		})
	}
}

func TestLostWorkerGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		fa, fb := &fake{}, &fake{}
		a, b := limited(t, l, dynamic.Config{}, 1, fa), limited(t, l, dynamic.Config{}, 1, fb)
		ca := start(t.Context(), a, request("a", 1))
		synctest.Wait()
		cb := start(t.Context(), b, request("b", 1))
		synctest.Wait()
		fa.lose(t)
		synctest.Wait()
		fb.answer(t)
		check(t, "b", cb.wait(t), nil)
		a.InstanceUp(0)
		synctest.Wait()
		fa.answer(t)
		check(t, "a", ca.wait(t), nil)
	})
}

// TestUnloadGivesBack has a model's batch hang when it is unloaded by force.
func TestUnloadGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		fa, fb := &fake{}, &fake{}
		a, b := limited(t, l, dynamic.Config{}, 1, fa), limited(t, l, dynamic.Config{}, 1, fb)
		ca := start(t.Context(), a, request("a", 1))
		synctest.Wait()
		cb := start(t.Context(), b, request("b", 1))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if a.Drain(ctx) == nil || ca.wait(t) == nil {
			t.Error("a's request didn't fail")
		}
		synctest.Wait()
		fb.answer(t)
		check(t, "b", cb.wait(t), nil)
		fa.next(t).Deliver(&infer.Result{Err: infer.ErrWorkerLost}) // late: nobody minds
	})
}

// TestDelaysDontHoldResources has two models with delays: while a batch is held back,
// its model takes nothing from the other.
func TestDelaysDontHoldResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		fa, fb, fc := &fake{}, &fake{}, &fake{}
		slow := dynamic.Config{MaxQueueDelay: 10 * time.Millisecond}
		a, b, c := limited(t, l, slow, 1, fa), limited(t, l, slow, 1, fb), limited(t, l, dynamic.Config{}, 1, fc)
		ca := start(t.Context(), a, request("a", 1))
		cb := start(t.Context(), b, request("b", 1))
		synctest.Wait()
		cc := start(t.Context(), c, request("c", 1))
		synctest.Wait()
		check(t, "c has at once", fc.ids(), "[c]")
		ca2 := start(t.Context(), a, request("d", 1)) // a stands in line now, and is granted too early
		synctest.Wait()
		fc.answer(t)
		check(t, "c", cc.wait(t), nil)
		check(t, "a has at 0 ms", fa.ids(), "[]")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if fa.ids()+fb.ids() != "[ad][]" && fa.ids()+fb.ids() != "[][b]" {
			t.Errorf("at 10 ms a has %s, b %s", fa.ids(), fb.ids())
		}
		for _, f := range []*fake{fa, fb} {
			if f.ids() == "[]" {
				continue
			}
			f.answer(t)
		}
		synctest.Wait()
		for _, f := range []*fake{fa, fb} {
			if f.ended == 0 {
				f.answer(t)
			}
		}
		check(t, "a", ca.wait(t), nil)
		check(t, "a, second", ca2.wait(t), nil)
		check(t, "b", cb.wait(t), nil)
	})
}

// TestLimitedShares has two models always busy: they get on as their priorities say.
func TestLimitedShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		var busy, both atomic.Int64
		var counts [2]atomic.Int64
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for k := range 2 {
			e := &fake{executed: func(b *infer.Batch) {
				both.Store(max(both.Load(), busy.Add(1)))
				wg.Go(func() {
					time.Sleep(time.Millisecond)
					counts[k].Add(1)
					busy.Add(-1)
					b.Deliver(echo(b))
				})
			}}
			s := limited(t, l, dynamic.Config{}, uint32(1+2*k), e)
			for i := range 3 {
				wg.Go(func() {
					for ctx.Err() == nil {
						_ = s.Do(ctx, request(fmt.Sprint(i), 8), drop) // one fills a batch; the last ends with ctx
					}
				})
			}
		}
		wg.Wait()
		check(t, "most at one time", both.Load(), 1)
		a, b := counts[0].Load(), counts[1].Load()
		if a+b < 900 || a < 3*b-6 || a > 3*b+6 {
			t.Errorf("priority 1 had %d turns, priority 3 had %d; want three to one of about 1000", a, b)
		}
	})
}

// TestRandomLimitedSchedules has models with several instances, delays, lost workers and
// callers that leave share two of a resource.
func TestRandomLimitedSchedules(t *testing.T) {
	for _, faults := range []bool{false, true} {
		t.Run(fmt.Sprintf("faults=%v", faults), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomLimited(t, faults) })
		})
	}
}

// gate counts what is between Execute and Deliver over all models.
type gate struct {
	infer.Executor
	in, most *atomic.Int64
}

func (g gate) Execute(b *infer.Batch) {
	g.most.Store(max(g.most.Load(), g.in.Add(1)))
	deliver := b.Deliver
	b.Deliver = func(r *infer.Result) {
		g.in.Add(-1)
		deliver(r)
	}
	g.Executor.Execute(b)
}

func randomLimited(t *testing.T, faults bool) {
	const models, callers, each = 4, 8, 30
	l := ratelimit.New([]ratelimit.Resource{{Name: "R", Count: 2, Device: ratelimit.Every}})
	var (
		in, most, ok atomic.Int64
		wg, running  sync.WaitGroup
		answered     sync.Map
		schedulers   [models]atomic.Pointer[dynamic.Scheduler]
	)
	for m := range models {
		cfg := dynamic.Config{PreserveOrdering: m == 1, MaxQueueDelay: time.Duration(m/2) * 40 * time.Microsecond}
		var execs []infer.Executor
		for i := range 1 + m%3 {
			execs = append(execs, gate{&wild{t: t, s: &schedulers[m], index: i, max: 8, seen: &answered, faults: faults, wg: &running}, &in, &most})
		}
		schedulers[m].Store(limited(t, l, cfg, uint32(m), execs...))
	}
	for c := range models * callers {
		wg.Go(func() {
			for k := range each {
				if oneRandom(t, schedulers[c%models].Load(), c*each+k, faults) {
					ok.Add(1)
				}
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	for m := range models {
		check(t, "drain", schedulers[m].Load().Drain(t.Context()), nil)
	}
	running.Wait()
	check(t, "most at one time", most.Load(), 2)
	if ok.Load() < models*callers*each/4 {
		t.Errorf("only %d of %d requests succeeded", ok.Load(), models*callers*each)
	}
	t.Logf("%d of %d succeeded", ok.Load(), models*callers*each)
}
