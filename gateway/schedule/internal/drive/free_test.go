package drive_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// freed is the result that frees a batch's instance, with answers to some of its requests.
func freed(responses ...infer.RequestResult) *infer.Result {
	return &infer.Result{More: true, Free: true, Responses: responses}
}

func final(index int) infer.RequestResult {
	return infer.RequestResult{Index: index, Response: &infer.Response{Final: true}}
}

// plain is one Do under way, of whose answers only the number counts.
func plain(ctx context.Context, s schedule.Scheduler, id string) *caller {
	c := &caller{req: request(id, 1), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = s.Do(ctx, c.req, func(r *infer.Response) error {
			c.n++
			r.Memory.Release()
			return nil
		})
		c.at = time.Now()
	}()
	synctest.Wait()
	return c
}

// A freed instance gets the next batch, and each batch ends by its own last result, in any order.
func TestFreedInstanceTakesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem, seen := &fake{}, newMemory(1<<20), &counts{}
		s := batcher(t, dynamic.Config{}, deps(mem, seen, f))
		a, b, c := plain(t.Context(), s, "a"), plain(t.Context(), s, "b"), plain(t.Context(), s, "c")
		check(t, "instance has", f.ids(), "[a]")
		first := f.next(t)
		first.Deliver(freed())
		synctest.Wait()
		check(t, "instance has", f.ids(), "[a bc]")
		check(t, "busy", s.Busy(), 1)
		check(t, "pending", s.Pending(), 0)
		first.Deliver(freed()) // which nothing follows from
		d := plain(t.Context(), s, "d")
		check(t, "instance has", f.ids(), "[a bc]")
		second := f.next(t)
		second.Deliver(freed(final(1)))
		synctest.Wait()
		check(t, "c is answered", fmt.Sprint(a.finished(), b.finished(), c.finished()), "false false true")
		check(t, "instance has", f.ids(), "[a bc d]")
		check(t, "executed batches", seen.batches.Load(), 0)
		second.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "b", b.wait(t), nil)
		check(t, "executed", fmt.Sprint(seen.batches.Load(), seen.requests.Load(), seen.rows.Load()), "1 2 2")
		f.answer(t)
		check(t, "d", d.wait(t), nil)
		synctest.Wait()
		check(t, "busy with the first one alone", s.Busy(), 1)
		check(t, "a waits", a.finished(), false)
		first.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "a", a.wait(t), nil)
		synctest.Wait()
		check(t, "executed", fmt.Sprint(seen.batches.Load(), seen.requests.Load(), seen.rows.Load()), "3 4 4")
		check(t, "busy", s.Busy(), 0)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// A worker's death fails what was open there: what had no answer yet is executed once more, by
// another instance, and the batch that the instance had meanwhile as well.
func TestFreedThenLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, other, mem := &fake{}, &fake{}, newMemory(1<<20)
		m := model(0)
		m.Decoupled = true
		s, err := direct.New(direct.Config{Model: m}, deps(mem, nil, f, other))
		if err != nil {
			t.Fatal(err)
		}
		s.InstanceDown(1)
		begun, silent, next := plain(t.Context(), s, "a"), plain(t.Context(), s, "b"), plain(t.Context(), s, "c")
		lost := &infer.Result{Err: fmt.Errorf("worker gone: %w", infer.ErrWorkerLost)}
		one := f.next(t)
		one.Deliver(freed(infer.RequestResult{Response: &infer.Response{}}))
		synctest.Wait()
		two := f.next(t)
		two.Deliver(freed())
		synctest.Wait()
		three := f.next(t)
		check(t, "instance has", f.ids(), "[a b c]")
		s.InstanceUp(1)
		for _, b := range []*infer.Batch{one, two, three} {
			gone := *lost
			b.Deliver(&gone)
		}
		s.InstanceDown(0)
		synctest.Wait()
		check(t, "begun has failed", infer.ReasonOf(begun.wait(t)), infer.ReasonWorkerLost)
		check(t, "answers of begun", begun.n, 1)
		check(t, "ready", s.Ready(), 1)
		check(t, "the other has", other.ids(), "[b]") // alone, as everything that is tried again
		other.next(t).Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "silent", silent.wait(t), nil)
		synctest.Wait()
		check(t, "the other has", other.ids(), "[b c]")
		other.next(t).Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "next", next.wait(t), nil)
		s.InstanceUp(0)
		again := plain(t.Context(), s, "d")
		f.next(t).Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "again", again.wait(t), nil)
		synctest.Wait()
		check(t, "busy", s.Busy(), 0)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// News of an open batch's loss that comes when its instance lives again takes it out of no
// service.
func TestFreedThenLostLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		a := plain(t.Context(), s, "a")
		first := f.next(t)
		first.Deliver(freed())
		s.InstanceDown(0)
		s.InstanceUp(0)
		first.Deliver(&infer.Result{Err: infer.ErrWorkerLost})
		synctest.Wait()
		check(t, "ready", s.Ready(), 1)
		check(t, "instance has", f.ids(), "[a a]")
		f.answer(t)
		check(t, "error", a.wait(t), nil)
	})
}

// Drain waits for open requests, and fails them when its time is over; their instance is told.
func TestDrainWaitsForOpenRequests(t *testing.T) {
	for name, late := range map[string]bool{"answered": false, "never answered": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
				a := plain(t.Context(), s, "a")
				first := f.next(t)
				first.Deliver(freed())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				drained := make(chan error, 1)
				go func() { drained <- s.Drain(ctx) }()
				time.Sleep(59 * time.Second)
				synctest.Wait()
				check(t, "drained", len(drained), 0)
				if late {
					err := <-drained
					check(t, "a's reason", infer.ReasonOf(a.wait(t)), infer.ReasonStopping)
					check(t, "cancelled", f.cancelled(), "[a]")
					if err == nil || !strings.Contains(err.Error(), "1 requests") {
						t.Errorf("drained with %v", err)
					}
				}
				first.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
				if !late {
					check(t, "a", a.wait(t), nil)
					check(t, "drained", <-drained, nil)
				}
			})
		})
	}
}

// A caller that leaves an open batch is out at once; its instance is told, and the batch ends
// when it ends.
func TestCancelOfAnOpenRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		ctx, cancel := context.WithCancel(t.Context())
		a := plain(ctx, s, "a")
		first := f.next(t)
		first.Deliver(freed())
		synctest.Wait()
		cancel()
		if err := a.wait(t); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		check(t, "cancelled", f.cancelled(), "[a]")
		check(t, "busy", s.Busy(), 1)
		first.Deliver(&infer.Result{Responses: []infer.RequestResult{{Err: infer.Errorf(infer.Cancelled, "gone")}}})
		check(t, "busy", s.Busy(), 0)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// A freed instance gives back what it had of the limiter's resources, once.
func TestFreeGivesResourcesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(nil)
		fa, fb := &fake{}, &fake{}
		a, b := limited(t, l, dynamic.Config{}, 1, fa), limited(t, l, dynamic.Config{}, 1, fb)
		x, y := plain(t.Context(), a, "x"), plain(t.Context(), b, "y")
		check(t, "b has", fb.ids(), "[]")
		first := fa.next(t)
		first.Deliver(freed())
		synctest.Wait()
		check(t, "b has", fb.ids(), "[y]")
		first.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "x", x.wait(t), nil)
		z := plain(t.Context(), a, "z")
		check(t, "a has", fa.ids(), "[x]") // b has the resource still
		fb.answer(t)
		check(t, "y", y.wait(t), nil)
		synctest.Wait()
		fa.answer(t)
		check(t, "z", z.wait(t), nil)
	})
}
