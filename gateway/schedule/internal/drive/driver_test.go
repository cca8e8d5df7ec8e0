package drive_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

func model(maxBatch int) schedule.Model {
	return schedule.Model{Name: "m", Version: 3, MaxBatchSize: maxBatch, Inputs: []string{"A", "S"}}
}

func batcher(t *testing.T, cfg dynamic.Config, d schedule.Deps) *dynamic.Scheduler {
	t.Helper()
	cfg.Model = model(max(cfg.Model.MaxBatchSize, 8))
	s, err := dynamic.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestBatchStandsInOneSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem, seen := &fake{}, newMemory(1<<20), &counts{}
		s := batcher(t, dynamic.Config{}, deps(mem, seen, f))
		var callers []*caller
		for _, id := range []string{"z", "a", "bb", "c"} {
			callers = append(callers, start(t.Context(), s, request(id, len(id))))
			synctest.Wait()
		}
		check(t, "pending", s.Pending(), 3)
		check(t, "queued", seen.queued.Load(), 3)
		f.answer(t)
		synctest.Wait()
		b := f.next(t)
		check(t, "rows", b.Rows, 4)
		for _, in := range b.Inputs {
			check(t, "segments of "+in.Name, len(in.Segments), 1)
			check(t, "rows of "+in.Name, in.Shape[0], 4)
		}
		b.Deliver(echo(b))
		for _, c := range callers {
			check(t, "error", c.wait(t), nil)
		}
		check(t, "batches", f.ids(), "[z abbc]")
		check(t, "memory in use", mem.inUse(), 0)
		check(t, "executed rows", seen.rows.Load(), 5)
		check(t, "queued", seen.queued.Load(), 0)
	})
}

func TestDelayHoldsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{MaxQueueDelay: 5 * time.Millisecond}, deps(newMemory(1<<20), nil, f))
		a := start(t.Context(), s, request("a", 1))
		time.Sleep(4 * time.Millisecond)
		b := start(t.Context(), s, request("b", 1))
		synctest.Wait()
		check(t, "at 4 ms", f.ids(), "[]")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		check(t, "at 5 ms", f.ids(), "[ab]")
		f.answer(t)
		check(t, "a", a.wait(t), nil)
		check(t, "b", b.wait(t), nil)
		times := a.req.Times
		check(t, "queue time", time.Duration(times.ComputeStart-times.QueueStart), 5*time.Millisecond)
		check(t, "rows", times.BatchRows, 2)
	})
}

func TestQueueTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{Policy: schedule.QueuePolicy{Set: true, Timeout: 50 * time.Millisecond,
			TimeoutOverride: true}}, deps(mem, nil, f))
		begin := time.Now()
		z := start(t.Context(), s, request("z", 1))
		synctest.Wait()
		a := start(t.Context(), s, request("a", 1))
		short, long := request("b", 1), request("c", 1)
		short.Timeout, long.Timeout = 10*time.Millisecond, time.Second
		b, c := start(t.Context(), s, short), start(t.Context(), s, long)
		for _, w := range []struct {
			c     *caller
			after time.Duration
		}{{b, 10 * time.Millisecond}, {a, 50 * time.Millisecond}, {c, 50 * time.Millisecond}} {
			err := w.c.wait(t)
			if err == nil || err.Error() != "Request timeout expired" || infer.CodeOf(err) != infer.Unavailable ||
				infer.ReasonOf(err) != infer.ReasonQueueTimeout {
				t.Errorf("request %s: got %v", w.c.req.ID, err)
			}
			check(t, w.c.req.ID+" failed after", w.c.at.Sub(begin), w.after)
		}
		f.answer(t)
		check(t, "z", z.wait(t), nil)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{Policy: schedule.QueuePolicy{Set: true, MaxSize: 1}}, deps(newMemory(1<<20), nil, f))
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		b := start(t.Context(), s, request("b", 1))
		synctest.Wait()
		err := start(t.Context(), s, request("r4", 1)).wait(t)
		check(t, "text", err.Error(), "[request id: r4] Exceeds maximum queue size")
		check(t, "reason", infer.ReasonOf(err), infer.ReasonQueueFull)
		f.answer(t)
		synctest.Wait()
		f.answer(t)
		check(t, "a", a.wait(t), nil)
		check(t, "b", b.wait(t), nil)
	})
}

func TestMemoryFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(200)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		err := start(t.Context(), s, request("b", 2)).wait(t)
		check(t, "reason", infer.ReasonOf(err), infer.ReasonMemory)
		big := request("c", 1)
		big.Inputs = big.Inputs[:1]
		big.Inputs[0].Data = make([]byte, 100<<10)
		big.Inputs[0].Shape = []int64{1, 25 << 10}
		check(t, "reason", infer.ReasonOf(start(t.Context(), s, big).wait(t)), infer.ReasonMemory)
		f.answer(t)
		check(t, "a", a.wait(t), nil)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		ctx, cancel := context.WithCancelCause(t.Context())
		freed := false
		flying := request("a", 1)
		flying.Memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { freed = true })
		a := start(ctx, s, flying)
		synctest.Wait()
		b := start(ctx, s, request("b", 1))
		synctest.Wait()
		c := start(t.Context(), s, request("c", 1))
		synctest.Wait()
		gone := errors.New("connection closed")
		cancel(gone)
		for _, w := range []*caller{a, b} {
			err := w.wait(t)
			if infer.CodeOf(err) != infer.Cancelled || !errors.Is(err, gone) {
				t.Errorf("request %s: got %v", w.req.ID, err)
			}
		}
		flying.Memory.Release() // the front end's
		check(t, "cancelled in flight", f.cancelled(), "[a]")
		check(t, "pending", s.Pending(), 1)
		check(t, "memory freed under the batch", freed, false)
		f.answer(t)
		check(t, "memory freed after it", freed, true)
		synctest.Wait()
		check(t, "batches", f.ids(), "[a c]")
		f.answer(t)
		check(t, "c", c.wait(t), nil)
		check(t, "memory in use", mem.inUse(), 0)
		if err := start(ctx, s, request("d", 1)).wait(t); infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("a request whose caller left before: got %v", err)
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s, err := direct.New(direct.Config{Model: model(0)}, deps(nil, nil, f))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		begin := time.Now()
		a := start(ctx, s, request("a", 1))
		err = a.wait(t)
		check(t, "reason", infer.ReasonOf(err), infer.ReasonDeadline)
		check(t, "code", infer.CodeOf(err), infer.Cancelled)
		check(t, "after", a.at.Sub(begin), 20*time.Millisecond)
		f.answer(t)
	})
}

func TestLostWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		z := start(t.Context(), s, request("z", 1))
		synctest.Wait()
		var callers []*caller
		sequence := request("q", 1)
		sequence.Correlation.ID = 7
		for _, r := range []*infer.Request{request("a", 1), request("x", 1), sequence} {
			callers = append(callers, start(t.Context(), s, r))
			synctest.Wait()
		}
		f.answer(t)
		synctest.Wait()
		f.lose(t) // a x q
		check(t, "ready", s.Ready(), 0)
		s.InstanceDown(0)
		s.InstanceUp(0)
		synctest.Wait()
		f.answer(t) // a
		synctest.Wait()
		check(t, "attempt", f.batches[len(f.batches)-1].Attempt, 1)
		f.lose(t) // x, for the second time
		synctest.Wait()
		check(t, "z", z.wait(t), nil)
		check(t, "a", callers[0].wait(t), nil)
		for _, c := range callers[1:] {
			err := c.wait(t)
			check(t, c.req.ID+" reason", infer.ReasonOf(err), infer.ReasonWorkerLost)
			check(t, c.req.ID+" code", infer.CodeOf(err), infer.Unavailable)
		}
		check(t, "batches", f.ids(), "[z axq a x]")
		check(t, "memory in use", mem.inUse(), 0)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem, seen := &fake{}, newMemory(1<<20), &counts{}
		s := batcher(t, dynamic.Config{MaxQueueDelay: time.Hour}, deps(mem, seen, f))
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(t.Context()) }()
		synctest.Wait()
		check(t, "leaves without its delay", f.ids(), "[a]")
		check(t, "reason", infer.ReasonOf(start(t.Context(), s, request("b", 1)).wait(t)), infer.ReasonStopping)
		f.answer(t)
		check(t, "a", a.wait(t), nil)
		check(t, "drain", <-drained, nil)
		check(t, "queued", seen.queued.Load(), 0)
	})
}

func TestDrainDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem, seen := &fake{}, newMemory(1<<20), &counts{}
		s := batcher(t, dynamic.Config{PreserveOrdering: true}, deps(mem, seen, f))
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		b := start(t.Context(), s, request("b", 1))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Drain(ctx); err == nil || !strings.Contains(err.Error(), "2 requests failed") {
			t.Errorf("drain: got %v", err)
		}
		for _, c := range []*caller{a, b} {
			check(t, c.req.ID, infer.ReasonOf(c.wait(t)), infer.ReasonStopping)
		}
		check(t, "cancelled", f.cancelled(), "[a]")
		f.answer(t)
		check(t, "memory in use", mem.inUse(), 0)
		check(t, "queued", seen.queued.Load(), 0)
	})
}

func TestPreserveOrdering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := &fake{}, &fake{}
		s := batcher(t, dynamic.Config{PreserveOrdering: true}, deps(newMemory(1<<20), nil, f, g))
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		b := start(t.Context(), s, request("b", 1))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		c := start(ctx, s, request("c", 1))
		synctest.Wait()
		d := start(t.Context(), s, request("d", 1))
		synctest.Wait()
		g.answer(t)
		synctest.Wait()
		g.answer(t)
		synctest.Wait()
		check(t, "batches", f.ids()+g.ids(), "[a][b cd]")
		check(t, "b waits for a", b.finished(), false)
		cancel()
		synctest.Wait()
		check(t, "d waits for a", d.finished(), false)
		f.answer(t)
		for _, w := range []*caller{a, b, d} {
			check(t, w.req.ID, w.wait(t), nil)
		}
		check(t, "c", infer.CodeOf(c.wait(t)), infer.Cancelled)
	})
}

func TestModelErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		run := func(res *infer.Result) error {
			c := start(t.Context(), s, request("a", 1))
			synctest.Wait()
			f.next(t).Deliver(res)
			return c.wait(t)
		}
		bad := infer.Errorf(infer.InvalidArg, "bad weights")
		check(t, "whole batch", run(&infer.Result{Err: bad}), bad)
		check(t, "one request", run(&infer.Result{Responses: []infer.RequestResult{{Err: bad}}}), bad)
		check(t, "no answer", infer.CodeOf(run(&infer.Result{})), infer.Internal)
		check(t, "wrong rows", infer.CodeOf(run(&infer.Result{Outputs: []infer.Tensor{{Name: "O", Datatype: infer.FP32,
			Shape: []int64{2}, Data: make([]byte, 8)}}})), infer.Internal)
		check(t, "index outside", infer.CodeOf(run(&infer.Result{Responses: []infer.RequestResult{{Index: 4}}})), infer.Internal)
	})
}

// Errors among answers go to who takes them; who does not has the first as the end.
func TestErrorsAmongAnswers(t *testing.T) {
	for takes, want := range map[bool]string{true: "0, not this one, 0 final <nil>", false: "0 not this one"} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			m := model(0)
			m.Decoupled = true
			s, err := direct.New(direct.Config{Model: m}, deps(nil, nil, f))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			done := make(chan error, 1)
			req := request("a", 1)
			req.TakesErrors = takes
			go func() {
				done <- s.Do(t.Context(), req, func(r *infer.Response) error {
					text := fmt.Sprint(len(r.Outputs))
					if r.Final {
						text += " final"
					}
					if r.Err != nil {
						text = r.Err.Error()
					}
					got = append(got, text)
					r.Memory.Release()
					return nil
				})
			}()
			synctest.Wait()
			b := f.next(t)
			freed := 0
			for _, err := range []error{nil, infer.Errorf(infer.NotFound, "not this one")} {
				b.Deliver(&infer.Result{More: true, Memory: infer.NewBuffer(nil, func(*infer.Buffer) { freed++ }),
					Responses: []infer.RequestResult{{Response: &infer.Response{Err: err}}}})
				synctest.Wait()
			}
			b.Deliver(&infer.Result{})
			end := <-done
			check(t, "answers", fmt.Sprint(strings.Join(got, ", "), " ", end), want)
			check(t, "memory freed", freed, 2)
		})
	}
}

func TestDecoupled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := model(0)
		m.Decoupled = true
		s, err := direct.New(direct.Config{Model: m}, deps(nil, nil, f))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		done := make(chan error, 1)
		go func() {
			done <- s.Do(t.Context(), request("a", 1), func(r *infer.Response) error {
				got = append(got, fmt.Sprintf("%s %d outputs final %v", r.ID, len(r.Outputs), r.Final))
				r.Memory.Release()
				return nil
			})
		}()
		synctest.Wait()
		b := f.next(t)
		freed := 0
		for range 2 {
			mem := infer.NewBuffer(nil, func(*infer.Buffer) { freed++ })
			b.Deliver(&infer.Result{More: true, Memory: mem, Responses: []infer.RequestResult{
				{Response: &infer.Response{Outputs: make([]infer.Tensor, 1)}}}})
			synctest.Wait()
		}
		b.Deliver(&infer.Result{})
		check(t, "error", <-done, nil)
		check(t, "answers", strings.Join(got, ", "), "a 1 outputs final false, a 1 outputs final false, a 0 outputs final true")
		check(t, "memory freed", freed, 2)
	})
}

func TestRequestedOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(nil, nil, f))
		req := request("a", 2)
		req.Outputs = []infer.RequestedOutput{{Name: "OUT_S"}}
		done := make(chan error, 1)
		go func() {
			done <- s.Do(t.Context(), req, func(r *infer.Response) error {
				if len(r.Outputs) != 1 || r.Outputs[0].Name != "OUT_S" {
					t.Errorf("got %v", r.Outputs)
				}
				r.Memory.Release()
				return errors.New("client gone")
			})
		}()
		synctest.Wait()
		f.answer(t)
		check(t, "send's error", (<-done).Error(), "client gone")
	})
}
