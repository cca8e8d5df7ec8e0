package cachetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Before is a Level that does something at the last moment before an entry is inserted.
type Before struct {
	cache.Level
	Insertion func()
}

// Insert is Level.
func (b *Before) Insert(q *cache.Query, e *cache.Entry) {
	b.Insertion()
	b.Level.Insert(q, e)
}

// Echo is a Runner that answers each request with what Says gives, of a version that is
// not loaded anew.
type Echo struct {
	Subject *cache.Subject
	Says    func() byte
	Runs    atomic.Int64
}

// Do is Runner.
func (r *Echo) Do(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
	r.Runs.Add(1)
	return send(Response(r.Says()))
}

// Turn is Runner.
func (r *Echo) Turn(context.Context, *infer.Request) error { return nil }

// Current is Runner.
func (r *Echo) Current() *cache.Subject { return r.Subject }

// Ask serves a request through a step and gives the first byte of its answer.
func (r *Echo) Ask(t *testing.T, s *cache.Step, req *infer.Request) (first byte, status infer.CacheStatus) {
	t.Helper()
	if err := s.Do(t.Context(), r.Subject, r, req, func(resp *infer.Response) error {
		first, status = resp.Outputs[0].Data[0], resp.Cache
		resp.Memory.Release()
		return nil
	}); err != nil {
		t.Error(err)
	}
	return first, status
}

// overtaken: an answer whose insertion a purge overtakes is not kept, however late the
// purge comes.
func overtaken(t *testing.T, r *Rig) {
	for name, sel := range map[string]cache.Selector{"everything": {}, "its model": {Model: "m"}, "its tag": {Tag: "x"}} {
		if _, err := r.Level.Purge(t.Context(), cache.Selector{}); err != nil {
			t.Fatal(err)
		}
		var step *cache.Step
		late := &Before{Level: r.Level, Insertion: func() {
			if _, err := step.Purge(t.Context(), sel); err != nil {
				t.Error(err)
			}
		}}
		step = cache.NewStep(late, nil)
		run := &Echo{Subject: Subject("m", "1", 1), Says: func() byte { return 1 }}
		run.Subject.Tags = []string{"x"}
		if _, status := run.Ask(t, step, Request(1)); status != infer.CacheMiss {
			t.Fatalf("the first time: %v", status)
		}
		late.Insertion = func() {}
		r.Insert(run.Subject, Request(2), Response(2)) // what fills later does so in order
		r.Arrives(t, run.Subject, Request(2))
		if _, status := run.Ask(t, step, Request(1)); status != infer.CacheMiss {
			t.Errorf("purging %s: the answer from before is found: %v", name, status)
		}
	}
}

// purged asks and purges at once from many goroutines: whoever begins after a purge gets
// no answer from before it.
func purged(t *testing.T, r *Rig) {
	const askers, each, purges = 4, 300, 40
	var made atomic.Int64 // what answers say; it grows before each purge
	step := cache.NewStep(r.Level, nil)
	run := &Echo{Subject: Subject("m", "1", 1), Says: func() byte { return byte(made.Load()) }}
	var least atomic.Int64 // of who begins now
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for i := range each {
				want := byte(least.Load())
				if got, status := run.Ask(t, step, Request(byte(i%3))); got < want {
					t.Errorf("after purge %d: an answer from before purge %d: %v", want, got+1, status)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for i := range int64(purges) {
			made.Store(i + 1)
			if _, err := step.Purge(t.Context(), cache.Selector{Model: "m"}); err != nil {
				t.Error(err)
			}
			least.Store(i + 1)
		}
	})
	wg.Wait()
}
