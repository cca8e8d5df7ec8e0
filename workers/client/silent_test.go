package client

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// silentWorld is an executor whose worker's results are made up, with a clock that stands.
type silentWorld struct {
	t      *testing.T
	e      *executor
	link   *nowhere
	now    int64
	shares bool
}

const openTimeout = 5 * time.Minute

func newSilentWorld(t *testing.T, shares bool) *silentWorld {
	w := &silentWorld{t: t, e: &executor{arena: nil}, link: &nowhere{}, now: infer.Now(), shares: shares}
	w.e.attach(w.link, nil, 1, &workerpb.LoadResponse{OpenRequests: 8}, false)
	return w
}

// open executes a batch, and frees it.
func (w *silentWorld) open(id uint64, timeouts ...time.Duration) chan *infer.Result {
	results := make(chan *infer.Result, 16)
	b := &infer.Batch{ID: id, Deliver: func(r *infer.Result) { results <- r }}
	for i, t := range timeouts {
		b.Requests = append(b.Requests, &infer.Request{ID: fmt.Sprint("q", i), Timeout: t})
	}
	w.e.Execute(b)
	w.receive(wire.Result{ID: id, More: true, Free: true})
	expect(w.t, results, "free ")
	return results
}

// receive is what links do with a result.
func (w *silentWorld) receive(m wire.Result) {
	w.t.Helper()
	b, done, o := w.e.find(m.ID)
	if b == nil {
		w.t.Fatalf("batch %d is not in flight", m.ID)
	}
	w.e.result = m
	r := &received{}
	err := w.e.check(b, done, o)
	if err == nil {
		err = r.setResult(&w.e.result, b, pieces(nil))
	}
	if err == nil && m.More {
		_, err = w.e.part(b, o, &r.result)
	} else if err == nil {
		w.e.finish(b, &r.result)
	}
	if err != nil {
		w.t.Error(err)
	}
}

// after looks at what is open when so much time has passed, and says which requests it failed.
func (w *silentWorld) after(d time.Duration, want string) {
	w.t.Helper()
	w.now += int64(d)
	got := ""
	for _, r := range w.e.failSilent(w.now, openTimeout, w.shares) {
		got += fmt.Sprintf("%s after %v ", r.id, r.age)
	}
	if got != want {
		w.t.Errorf("failed %q, want %q", got, want)
	}
}

func answerTo(i int, final bool) []wire.Response { return []wire.Response{{Index: i, Final: final}} }

func eitherMemory(t *testing.T, test func(t *testing.T, shares bool)) {
	t.Run("shared memory", func(t *testing.T) { test(t, true) })
	t.Run("another host", func(t *testing.T) { test(t, false) })
}

// Of the requests of a batch, those of which nothing is heard are failed, each by itself. What
// comes for them later is dropped, and they count until the batch's end.
func TestSilentRequestsAreFailed(t *testing.T) {
	eitherMemory(t, func(t *testing.T, shares bool) {
		w := newSilentWorld(t, shares)
		results := w.open(1, 0, 0, 0, 0)
		w.receive(wire.Result{ID: 1, More: true, Responses: answerTo(0, true)})
		expect(t, results, "")
		w.receive(wire.Result{ID: 1, More: true, Responses: []wire.Response{{Index: 3, Code: infer.NotFound, Err: "no"}}})
		expect(t, results, "not found ")
		w.after(time.Hour, "") // the first look
		w.after(openTimeout, "")
		w.receive(wire.Result{ID: 1, More: true, Responses: answerTo(1, false)})
		expect(t, results, "")
		w.after(silenceGrace, "q2 after 5m30s ")
		if r := wait(t, results); !r.More || len(r.Responses) != 1 || r.Responses[0].Index != 2 || infer.CodeOf(r.Responses[0].Err) != infer.Internal {
			t.Errorf("got %+v", r)
		}
		if !slices.Equal(w.link.cancelled, []string{"1/2"}) {
			t.Errorf("cancelled %v", w.link.cancelled)
		}
		w.receive(wire.Result{ID: 1, More: true, Responses: append(answerTo(2, true), answerTo(1, false)...)})
		if r := wait(t, results); len(r.Responses) != 1 || r.Responses[0].Index != 1 {
			t.Errorf("got %+v", r)
		}
		w.after(openTimeout, "")
		w.after(openTimeout, "")
		if w.e.opens.requests != 4 || w.e.ended() == nil {
			t.Errorf("%d requests are open", w.e.opens.requests)
		}
		w.receive(wire.Result{ID: 1, Responses: append(answerTo(1, true), answerTo(2, true)...)})
		if r := wait(t, results); r.More || len(r.Responses) != 1 || r.Responses[0].Index != 1 {
			t.Errorf("got %+v", r)
		}
		w.idle()
	})
}

func (w *silentWorld) idle() {
	w.t.Helper()
	if w.e.opens.requests != 0 || len(w.e.opens.all) != 0 {
		w.t.Errorf("%d requests are open", w.e.opens.requests)
	}
}

// A request that has a timeout of its own has that, and time to end.
func TestSilentRequestsOfTheirOwnTimeout(t *testing.T) {
	w := newSilentWorld(t, true)
	results := w.open(1, 2*time.Hour, time.Minute)
	w.after(0, "")
	w.after(time.Minute+ownGrace-time.Millisecond, "")
	w.after(time.Millisecond, "q1 after 2m0s ")
	w.after(2*time.Hour-2*time.Minute, "")
	w.receive(wire.Result{ID: 1, More: true, Responses: answerTo(0, false)})
	w.after(ownGrace, "")
	w.after(ownGrace, "q0 after 1m0s ")
	if len(results) != 3 {
		t.Errorf("%d results, want the errors and a part", len(results))
	}
}

// A batch of which nobody waits for an answer stays in the scheduler's hands while its worker
// may read the inputs, and else ends at once. Nothing that the worker sends for it matters.
func TestSilentBatches(t *testing.T) {
	for name, last := range map[string]wire.Result{
		"outputs": {ID: 1, Outputs: []wire.Output{{Name: "OUT", Datatype: infer.FP32, Shape: []int64{1}}}},
		"nothing": {ID: 1}, "an answer": {ID: 1, Responses: answerTo(0, true)}, "an error": {ID: 1, Err: "no"}} {
		t.Run(name, func(t *testing.T) {
			eitherMemory(t, func(t *testing.T, shares bool) {
				w := newSilentWorld(t, shares)
				results := w.open(1, 0)
				w.after(0, "")
				w.after(openTimeout+silenceGrace, "q0 after 5m30s ")
				expect(t, results, "internal ")
				if !shares {
					expect(t, results, "internal ")
				}
				if w.e.ended() != nil || w.e.opens.requests != 1 {
					t.Errorf("%d requests are open, want 1 for which nobody waits", w.e.opens.requests)
				}
				w.receive(wire.Result{ID: 1, More: true, Responses: answerTo(0, false)})
				if shares {
					expect(t, results, "")
				}
				w.after(time.Hour, "")
				w.receive(last)
				if shares {
					if r := wait(t, results); r.More || len(r.Responses) > 0 || len(r.Outputs) > 0 {
						t.Errorf("got %+v", r)
					}
				}
				if len(results) > 0 {
					t.Errorf("got %+v", <-results)
				}
				w.idle()
			})
		})
	}
}

// A worker's end, and an unload, end batches that were failed.
func TestSilentBatchesEndWithTheirWorker(t *testing.T) {
	eitherMemory(t, func(t *testing.T, shares bool) {
		for _, end := range []func(e *executor){func(e *executor) { e.failAll(errLost()) }, (*executor).stop} {
			w := newSilentWorld(t, shares)
			results := w.open(1, 0)
			w.after(0, "")
			w.after(time.Hour, "q0 after 1h0m0s ")
			expect(t, results, "internal ")
			end(w.e)
			if r := wait(t, results); r.More || r.Err == nil || len(results) > 0 {
				t.Errorf("got %+v", r)
			}
			w.idle()
		}
	})
}

// An answer that is read between the look and the failure counts.
func TestSilentRequestsAnsweredInTime(t *testing.T) {
	w := newSilentWorld(t, true)
	w.open(1, 0)
	w.after(0, "")
	w.now += int64(time.Hour)
	o := w.e.opens.find(1)
	if !o.lookLocked(w.now, openTimeout) {
		t.Error("the request is not overdue")
	}
	w.receive(wire.Result{ID: 1, More: true, Responses: answerTo(0, false)})
	if failed := w.e.failLate(o, w.now, openTimeout, true); len(failed) > 0 || o.silent {
		t.Errorf("failed %+v", failed)
	}
}

// A worker of this host that keeps silent: its request is failed and cancelled, the answer that
// comes then is dropped, and the end that came with it gives back the inputs.
func TestLiarKeepsSilent(t *testing.T) {
	l := as("liar")
	l.Env = append(l.Env, lieEnv+"=keeps silent")
	w := start(t, Config{Local: []LocalWorker{l}, OpenTimeout: 10 * time.Millisecond, HealthTimeout: 2 * time.Second, KillAfter: 10 * time.Millisecond})
	v := load(t, w, spec(1, nil))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	expect(t, results, "free ")
	expect(t, results, "internal ")
	expect(t, results, "end")
	if n := w.States()[0].Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
	unload(t, v)
	if n := w.Memory().InUse(); n != 0 {
		t.Errorf("%d bytes are left in use", n)
	}
}

// After an unload no result is waited for any more.
func TestSilentBatchesAreForgotten(t *testing.T) {
	w := newSilentWorld(t, false)
	w.open(7, 0)
	w.after(0, "")
	w.after(time.Hour, "q0 after 1h0m0s ")
	w.e.stop()
	if !slices.Equal(w.link.forgotten, []string{"7"}) {
		t.Errorf("forgotten %v", w.link.forgotten)
	}
}

// A batch that ends while its requests are failed has one end, and nothing behind it.
func TestSilentBatchesEndOnce(t *testing.T) {
	eitherMemory(t, func(t *testing.T, shares bool) {
		for id := range uint64(300) {
			w := newSilentWorld(t, shares)
			results := w.open(id+1, 0, 0)
			w.after(0, "")
			over := make(chan struct{})
			go func() {
				defer close(over)
				w.e.failSilent(w.now+int64(time.Hour), openTimeout, shares)
			}()
			w.receive(wire.Result{ID: id + 1, More: true, Responses: answerTo(0, true)})
			w.receive(wire.Result{ID: id + 1, Responses: answerTo(1, true)})
			<-over
			for last := false; len(results) > 0; {
				r := <-results
				if last {
					t.Fatalf("behind the end: %+v", r)
				}
				last = !r.More
			}
			w.idle()
		}
	})
}
