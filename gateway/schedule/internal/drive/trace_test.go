package drive_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// placed is a fake that knows where it is.
type placed struct{ fake }

func (*placed) Place() (instance, worker string) { return "m_0_0", "cpu" }

// sampled gives a request a trace of spans, and says whether its family is complete.
func sampled(req *infer.Request) (family *infer.TraceFamily, complete *atomic.Bool) {
	complete = &atomic.Bool{}
	family = &infer.TraceFamily{Level: infer.TraceTimestamps, IDs: new(atomic.Uint64), Sink: func(*infer.TraceFamily) { complete.Store(true) }}
	family.Open(&infer.TraceCall{Span: infer.SpanContext{Trace: infer.NewTraceID(), Span: infer.NewSpanID(), Sampled: true}})
	req.Trace = family.Begin("m", req.ID)
	return family, complete
}

// A batch with sampled requests is taken down, once for each try, also of a request whose
// caller has left; what its family holds is complete when the batch has ended.
func TestSampledBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &placed{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		first := start(t.Context(), s, request("z", 1))
		synctest.Wait()
		a, b, plain := request("a", 1), request("b", 2), request("p", 1)
		familyA, doneA := sampled(a)
		familyB, doneB := sampled(b)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		callers := []*caller{start(t.Context(), s, a)}
		synctest.Wait()
		gone := start(ctx, s, b)
		synctest.Wait()
		callers = append(callers, start(t.Context(), s, plain))
		synctest.Wait()
		f.answer(t) // z; a, b and p leave together
		synctest.Wait()
		leave()
		synctest.Wait()
		check(t, "left", infer.CodeOf(gone.wait(t)), infer.Cancelled)
		b.Trace.End()
		familyB.Close()
		check(t, "complete before its batch", doneB.Load(), false)
		f.lose(t)
		check(t, "complete with its batch", doneB.Load(), true)
		s.InstanceDown(0)
		s.InstanceUp(0)
		synctest.Wait()
		f.answer(t) // a again
		synctest.Wait()
		f.answer(t) // p again
		synctest.Wait()
		check(t, "complete before its call", doneA.Load(), false)
		a.Trace.End()
		familyA.Close()
		check(t, "complete", doneA.Load(), true)
		for _, c := range append(callers, first) {
			check(t, c.req.ID, c.wait(t), nil)
		}
		checkTries(t, familyA, familyB)
		check(t, "drain", s.Drain(t.Context()), nil)
	})
}

func checkTries(t *testing.T, a, b *infer.TraceFamily) {
	t.Helper()
	tries := a.Traces[0].Batches
	if len(tries) != 2 || len(b.Traces[0].Batches) != 1 {
		t.Fatalf("%d and %d batches, want 2 and 1", len(tries), len(b.Traces[0].Batches))
	}
	check(t, "the same batch", b.Traces[0].Batches[0], tries[0])
	for i, x := range tries {
		check(t, "attempt", x.Attempt, i)
		check(t, "requests", x.Requests, 3-2*i)
		check(t, "rows", x.Rows, 4-3*i)
		check(t, "links", len(x.Links), 2-i)
		check(t, "trace", x.Span.Trace, a.Call.Span.Trace)
		check(t, "place", x.Instance+" "+x.Worker, "m_0_0 cpu")
		check(t, "lost", errors.Is(x.Err, infer.ErrWorkerLost), i == 0)
		if x.Started == 0 || x.Ended < x.Started {
			t.Errorf("batch %d: from %d to %d", i, x.Started, x.Ended)
		}
	}
	if tries[0].Span.Span == tries[1].Span.Span {
		t.Error("two tries are one span")
	}
}
