package cache

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// store is the plainest Level.
type store struct {
	mu sync.Mutex
	m  map[Key]*Entry
}

func (s *store) Quick() bool { return false }

func (s *store) Lookup(_ context.Context, q *Query) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[q.Key]
}

func (s *store) Insert(q *Query, e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[q.Key] = e
}

func (s *store) Purge(_ context.Context, sel Selector) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.m {
		if sel.Matches(e) {
			delete(s.m, k)
			n++
		}
	}
	return n, nil
}

func (s *store) Figures() []Figures          { return nil }
func (s *store) Close(context.Context) error { return nil }

// runner executes with what the test says; the zero value echoes at once.
type runner struct {
	takes   time.Duration
	fails   func(n int64) error
	shape   func(resp *infer.Response)
	current *Subject
	turns   atomic.Int64
	runs    atomic.Int64
}

func (r *runner) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	n := r.runs.Add(1)
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "left")
	}
	if r.fails != nil {
		if err := r.fails(n); err != nil {
			return err
		}
	}
	resp := &infer.Response{ID: req.ID, Model: "m", Version: "1", Final: true, Outputs: []infer.Tensor{
		{Name: "Y", Datatype: infer.Int32, Shape: []int64{6}, Data: append([]byte{}, req.Inputs[0].Data...)}}}
	if r.shape != nil {
		r.shape(resp)
	}
	return send(resp)
}

func (r *runner) Turn(context.Context, *infer.Request) error { r.turns.Add(1); return nil }
func (r *runner) Current() *Subject                          { return r.current }

type rig struct {
	*Step
	store *store
	run   *runner
	s     *Subject
}

func newRig() *rig {
	st := &store{m: map[Key]*Entry{}}
	s := subject()
	return &rig{NewStep(st, nil), st, &runner{current: s}, s}
}

// ask serves a request and gives the status and the first byte of the answer.
func (r *rig) ask(ctx context.Context, req *infer.Request) (status infer.CacheStatus, first byte, err error) {
	err = r.Do(ctx, r.s, r.run, req, func(resp *infer.Response) error {
		if resp.ID != req.ID {
			return errors.New("another request's id: " + resp.ID)
		}
		status, first = resp.Cache, resp.Outputs[0].Data[0]
		return nil
	})
	return status, first, err
}

func TestHitAndMiss(t *testing.T) {
	r := newRig()
	for i, want := range []infer.CacheStatus{infer.CacheMiss, infer.CacheHit, infer.CacheHit} {
		req := request()
		req.ID = string(rune('a' + i))
		got, _, err := r.ask(t.Context(), req)
		if err != nil || got != want || req.Times.CacheHit != (want == infer.CacheHit) || req.Times.CacheLookup == 0 {
			t.Errorf("request %d: %v, %v, want %v; times %+v", i, got, err, want, req.Times)
		}
	}
	if n := r.run.runs.Load(); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// What is no whole success is not kept, and nothing of it is found later.
func TestNotKept(t *testing.T) {
	for name, set := range map[string]func(r *rig, req *infer.Request){
		"error": func(r *rig, _ *infer.Request) {
			r.run.fails = func(int64) error { return infer.Errorf(infer.Internal, "no") }
		},
		"sequence": func(_ *rig, req *infer.Request) { req.Correlation.ID = 7 },
		"start":    func(_ *rig, req *infer.Request) { req.SequenceStart = true },
		"partial":  func(r *rig, _ *infer.Request) { r.run.shape = func(resp *infer.Response) { resp.Final = false } },
		"wrong bytes": func(r *rig, _ *infer.Request) {
			r.run.shape = func(resp *infer.Response) { resp.Outputs[0].Data = resp.Outputs[0].Data[:5] }
		},
		"no datatype": func(r *rig, _ *infer.Request) {
			r.run.shape = func(resp *infer.Response) { resp.Outputs[0].Datatype = 0 }
		},
		"loaded anew":   func(r *rig, _ *infer.Request) { r.run.current = subject() },
		"purged during": func(r *rig, _ *infer.Request) { r.run.shape = func(*infer.Response) { mustPurge(r) } },
	} {
		r := newRig()
		req := request()
		set(r, req)
		for range 2 {
			if status, _, err := r.ask(t.Context(), req); status == infer.CacheHit || status == infer.CacheCollapsed {
				t.Errorf("%s: %v, %v", name, status, err)
			}
		}
		if len(r.store.m) != 0 || r.run.runs.Load() != 2 {
			t.Errorf("%s: %d entries, %d executions", name, len(r.store.m), r.run.runs.Load())
		}
	}
}

func mustPurge(r *rig) {
	if _, err := r.Purge(context.Background(), Selector{}); err != nil {
		panic(err)
	}
}

// An error that was told to one is not told to the next.
func TestErrorIsNotRemembered(t *testing.T) {
	r := newRig()
	r.run.fails = func(n int64) error {
		if n == 1 {
			return infer.Errorf(infer.Internal, "once")
		}
		return nil
	}
	if _, _, err := r.ask(t.Context(), request()); infer.CodeOf(err) != infer.Internal {
		t.Errorf("first: %v", err)
	}
	for i, want := range []infer.CacheStatus{infer.CacheMiss, infer.CacheHit} {
		if got, _, err := r.ask(t.Context(), request()); err != nil || got != want {
			t.Errorf("request %d after it: %v, %v, want %v", i, got, err, want)
		}
	}
}

func TestOrderedTakesTurns(t *testing.T) {
	r := newRig()
	r.s.Ordered = true
	for range 3 {
		if _, _, err := r.ask(t.Context(), request()); err != nil {
			t.Error(err)
		}
	}
	if n := r.run.turns.Load(); n != 2 {
		t.Errorf("%d turns for 2 hits", n)
	}
}

func TestHitOfACallerThatLeft(t *testing.T) {
	r := newRig()
	if _, _, err := r.ask(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.ask(ctx, request()); infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("got %v", err)
	}
}

// crowd asks n times at once and gives what each got.
func crowd(ctx context.Context, r *rig, n int) (statuses map[infer.CacheStatus]int, failed int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	statuses = map[infer.CacheStatus]int{}
	for range n {
		wg.Go(func() {
			status, _, err := r.ask(ctx, request())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				return
			}
			statuses[status]++
		})
	}
	wg.Wait()
	return statuses, failed
}

func TestOneExecutionForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.run.takes = time.Second
		got, failed := crowd(t.Context(), r, 100)
		if failed != 0 || got[infer.CacheMiss] != 1 || got[infer.CacheCollapsed] != 99 || r.run.runs.Load() != 1 {
			t.Errorf("%v, %d failed, %d executions", got, failed, r.run.runs.Load())
		}
		nothingLeft(t, r)
	})
}

// nothingLeft: no flight may stay behind.
func nothingLeft(t *testing.T, r *rig) {
	t.Helper()
	for i := range r.flights.shards {
		if n := len(r.flights.shards[i].m); n != 0 {
			t.Errorf("%d flights are left", n)
		}
	}
}

// A leader that fails hands over; after a few failures everybody goes his own way.
func TestFailingLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.run.takes = time.Second
		r.run.fails = func(n int64) error {
			if n <= 2 {
				return infer.Errorf(infer.Internal, "no")
			}
			return nil
		}
		start := time.Now()
		got, failed := crowd(t.Context(), r, 50)
		if failed != 2 || got[infer.CacheMiss] != 1 || got[infer.CacheCollapsed] != 47 || time.Since(start) != 3*time.Second {
			t.Errorf("%v, %d failed, after %v", got, failed, time.Since(start))
		}
		nothingLeft(t, r)

		r = newRig()
		r.run.takes = time.Second
		r.run.fails = func(int64) error { return infer.Errorf(infer.Internal, "never") }
		start = time.Now()
		if _, failed = crowd(t.Context(), r, 50); failed != 50 || time.Since(start) != 4*time.Second {
			t.Errorf("%d failed after %v: a model that fails must not be tried one by one", failed, time.Since(start))
		}
		nothingLeft(t, r)
	})
}

// A leader that leaves hands over, and so does the next; each follower has his deadline.
func TestLeavingLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.run.takes = 10 * time.Second
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				time.Sleep(time.Duration(i)) // in this order
				_, _, errs[i] = r.ask(ctx, request())
			})
		}
		wg.Wait()
		gone, answered := 0, 0
		for i, err := range errs {
			switch {
			case err == nil:
				answered++
			case infer.CodeOf(err) == infer.Cancelled:
				gone++
			default:
				t.Errorf("caller %d: %v", i, err)
			}
		}
		if answered < 7 || answered+gone != len(errs) || errs[0] == nil {
			t.Errorf("%d answered, %d gone", answered, gone)
		}
		nothingLeft(t, r)
	})
}

// A follower takes over from a leader that panics.
func TestPanickingLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.run.takes = time.Second
		r.run.fails = func(n int64) error {
			if n == 1 {
				panic("leader")
			}
			return nil
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { _ = recover() }()
			_, _, err := r.ask(t.Context(), request())
			t.Errorf("no panic: %v", err)
		})
		synctest.Wait()
		if got, failed := crowd(t.Context(), r, 5); failed != 0 || got[infer.CacheMiss] != 1 || got[infer.CacheCollapsed] != 4 {
			t.Errorf("%v, %d failed", got, failed)
		}
		wg.Wait()
		nothingLeft(t, r)
	})
}

// A request that comes after a purge gets no answer from before, not even of a flight.
func TestPurgeDuringAFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.run.takes = time.Second
		var wg sync.WaitGroup
		wg.Go(func() { crowd(t.Context(), r, 3) })
		synctest.Wait()
		mustPurge(r)
		if got, _ := crowd(t.Context(), r, 3); got[infer.CacheMiss] != 1 || r.run.runs.Load() != 2 {
			t.Errorf("after the purge: %v, %d executions", got, r.run.runs.Load())
		}
		wg.Wait()
		nothingLeft(t, r)
	})
}

// Random callers, deadlines, failures and purges: everybody gets one answer, his own, or
// an error that he caused or the model did; nothing is left.
func TestRandomCallers(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			r := newRig()
			r.run.takes = 5 * time.Millisecond
			r.run.fails = func(n int64) error {
				if n%3 == 0 {
					return infer.Errorf(infer.Internal, "now and then")
				}
				return nil
			}
			var wg sync.WaitGroup
			for range 300 {
				b, wait, start := byte(rng.IntN(4)), rng.IntN(15), rng.IntN(60)
				purges := rng.IntN(40) == 0
				wg.Go(func() {
					time.Sleep(time.Duration(start) * time.Millisecond)
					if purges {
						mustPurge(r)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(wait)*time.Millisecond)
					defer cancel()
					req := request()
					req.Inputs[0].Data[0] = b
					_, got, err := r.ask(ctx, req)
					if err == nil && got != b {
						t.Errorf("asked for %d, got %d", b, got)
					}
					if err != nil && infer.CodeOf(err) != infer.Cancelled && infer.CodeOf(err) != infer.Internal {
						t.Errorf("error %v", err)
					}
				})
			}
			wg.Wait()
			nothingLeft(t, r)
		})
	}
}

// An answer is used again once it was released, and not before; what it was made of stays
// as it was.
func TestAnswersAreUsedAgain(t *testing.T) {
	r := newRig()
	var held []*infer.Response
	ask := func(release bool) *infer.Response {
		t.Helper()
		var got *infer.Response
		if err := r.Do(t.Context(), r.s, r.run, request(), func(resp *infer.Response) error {
			got = resp
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Outputs[0].Shape, []int64{6}) || len(got.Outputs) != 1 || got.Outputs[0].Name == "spoilt" {
			t.Fatalf("answered %+v", got)
		}
		if got.Cache == infer.CacheHit {
			got.Outputs[0].Name, got.Outputs[0].Shape[0] = "spoilt", -7
		}
		if release {
			got.Memory.Release()
		} else {
			held = append(held, got)
		}
		return got
	}
	ask(true)
	for i := range 50 {
		got := ask(i%2 == 0)
		for _, h := range held[:len(held)-i%2] {
			if h == got {
				t.Fatal("an answer that is held was given again")
			}
		}
	}
}

func BenchmarkStepHit(b *testing.B) {
	r := newRig()
	req := request()
	req.Params = nil
	send := func(resp *infer.Response) error {
		resp.Memory.Release()
		return nil
	}
	if err := r.Do(b.Context(), r.s, r.run, req, send); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Do(b.Context(), r.s, r.run, req, send); err != nil {
			b.Fatal(err)
		}
	}
}
