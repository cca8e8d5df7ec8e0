package drive_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// sent is a request with counted memory, which its maker releases at the end as all do.
type sent struct {
	*caller
	memory *infer.Buffer
	freed  int
}

// sendCounted is one request under way; started: nobody waits for it.
func sendCounted(ctx context.Context, t *testing.T, s schedule.Scheduler, id string, started bool) *sent {
	c := &sent{caller: &caller{req: request(id, 1), done: make(chan struct{})}}
	c.memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { c.freed++ })
	c.req.Memory = c.memory
	take := func(r *infer.Response) error {
		c.n++
		r.Memory.Release()
		return nil
	}
	go func() {
		defer close(c.done)
		defer func() { c.req.Memory.Release() }()
		if !started {
			c.err = s.Do(ctx, c.req, take)
			return
		}
		to := newSink(t, take)
		if st, ok := s.(schedule.Starter); !ok || !st.Start(ctx, c.req, to) {
			t.Error("not started")
			return
		}
		c.err = <-to.done
	}()
	synctest.Wait()
	return c
}

func inputsRead(free bool, responses ...infer.RequestResult) *infer.Result {
	return &infer.Result{More: true, Free: free, InputsRead: true, Responses: responses}
}

// Inputs that are read no more are given back while the answer is open: the batch's, the
// maker's, and what was copied.
func TestInputsReadAreGivenBack(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprint("started ", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, mem := &fake{}, newMemory(1<<20)
				s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
				a := sendCounted(t.Context(), t, s, "a", started)
				first := f.next(t)
				first.Deliver(inputsRead(false)) // of a batch that is not freed: nothing
				synctest.Wait()
				check(t, "freed before", a.freed, 0)
				first.Deliver(freed())
				synctest.Wait()
				check(t, "freed while the inputs are read", a.freed, 0)
				first.Deliver(inputsRead(false))
				synctest.Wait()
				check(t, "freed", a.freed, 1)
				check(t, "the request has", fmt.Sprint(a.req.Memory == nil, a.req.Inputs[0].Data == nil), "true true")
				check(t, "memory in use", mem.inUse(), 0)
				check(t, "finished", a.finished(), false)
				first.Deliver(inputsRead(false)) // once more: nothing
				first.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
				check(t, "a", a.wait(t), nil)
				check(t, "answers", a.n, 1)
				synctest.Wait()
				check(t, "freed", a.freed, 1)
			})
		})
	}
}

// What others hold is theirs: an answer that is an input stays, and so does the memory of one who has
// ended or left, until the batch ends; regions that outputs go to are held to the end.
func TestInputsReadStayForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		hold := sendCounted(t.Context(), t, s, "x", false) // occupies the instance
		ctx, cancel := context.WithCancel(t.Context())
		answered, left := sendCounted(t.Context(), t, s, "a", false), sendCounted(ctx, t, s, "b", true)
		passed, waits := sendCounted(t.Context(), t, s, "c", true), sendCounted(t.Context(), t, s, "d", false)
		f.answer(t)
		check(t, "x", hold.wait(t), nil)
		synctest.Wait()
		check(t, "instance has", f.ids(), "[x abcd]")
		b := f.next(t)
		b.Deliver(freed(final(0)))
		check(t, "a", answered.wait(t), nil)
		cancel()
		check(t, "b", infer.CodeOf(left.wait(t)), infer.Cancelled)
		passed.memory.Retain()
		b.Deliver(inputsRead(false))
		synctest.Wait()
		check(t, "freed", fmt.Sprint(answered.freed, left.freed, passed.freed, waits.freed), "0 0 0 1")
		passed.memory.Release()
		check(t, "freed", passed.freed, 1)
		b.Deliver(&infer.Result{Responses: []infer.RequestResult{final(2), final(3)}})
		check(t, "c", passed.wait(t), nil)
		check(t, "d", waits.wait(t), nil)
		synctest.Wait()
		check(t, "freed", fmt.Sprint(answered.freed, left.freed, passed.freed, waits.freed), "1 1 1 1")
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// A request with an output in a client's memory holds that until its end.
func TestInputsReadOfAPlacedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		c := &caller{req: request("a", 1), done: make(chan struct{})}
		freedAt := 0
		c.req.Memory = infer.NewBuffer(nil, func(*infer.Buffer) { freedAt++ })
		c.req.Outputs = []infer.RequestedOutput{{Name: "OUT_A", Place: infer.Place{Region: 1, Size: 8}}}
		go func() {
			defer close(c.done)
			c.err = s.Do(t.Context(), c.req, func(r *infer.Response) error { r.Memory.Release(); return nil })
			c.req.Memory.Release()
		}()
		synctest.Wait()
		b := f.next(t)
		b.Deliver(inputsRead(true))
		synctest.Wait()
		check(t, "freed", freedAt, 0)
		b.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "error", c.wait(t), nil)
		synctest.Wait()
		check(t, "freed", freedAt, 1)
	})
}

// A request whose inputs are gone is not executed again, neither when its worker is lost nor when
// it asks to be.
func TestInputsReadAreNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, other, mem := &fake{}, &fake{}, newMemory(1<<20)
		s, err := direct.New(direct.Config{Model: model(0)}, deps(mem, nil, f, other))
		if err != nil {
			t.Fatal(err)
		}
		s.InstanceDown(1)
		a, b := sendCounted(t.Context(), t, s, "a", true), sendCounted(t.Context(), t, s, "b", false)
		one := f.next(t)
		one.Deliver(inputsRead(true))
		synctest.Wait()
		two := f.next(t)
		two.Deliver(inputsRead(true))
		synctest.Wait()
		s.InstanceUp(1)
		one.Deliver(&infer.Result{Err: fmt.Errorf("worker gone: %w", infer.ErrWorkerLost)})
		err = a.wait(t)
		check(t, "a", fmt.Sprint(infer.CodeOf(err), " ", infer.ReasonOf(err)), "unavailable worker_lost")
		two.Deliver(&infer.Result{Responses: []infer.RequestResult{{Index: 0, Repeat: true}}})
		check(t, "b", infer.CodeOf(b.wait(t)), infer.Internal)
		synctest.Wait()
		check(t, "the other has", other.ids(), "[]")
		check(t, "freed", fmt.Sprint(a.freed, b.freed), "1 1")
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// Where answers keep their order nothing is handed over out of turn.
func TestInputsReadInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{PreserveOrdering: true}, deps(mem, nil, f))
		a, b := sendCounted(t.Context(), t, s, "a", false), sendCounted(t.Context(), t, s, "b", false)
		one := f.next(t)
		one.Deliver(freed())
		synctest.Wait()
		two := f.next(t)
		two.Deliver(inputsRead(true))
		two.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		synctest.Wait()
		check(t, "b is answered before a", b.finished(), false)
		one.Deliver(&infer.Result{Responses: []infer.RequestResult{final(0)}})
		check(t, "a", a.wait(t), nil)
		check(t, "b", b.wait(t), nil)
		synctest.Wait()
		check(t, "freed", fmt.Sprint(a.freed, b.freed), "1 1")
		check(t, "memory in use", mem.inUse(), 0)
	})
}
