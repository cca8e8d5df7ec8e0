package repository

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// rewarmer keeps instances whose worker was started again out of service until they
// have run the warm-up samples. A version without samples has none (nil). Its methods
// but stop are called with Model.mu held.
type rewarmer struct {
	begin  func() (context.Context, context.CancelFunc)
	run    func(ctx context.Context, i int) error
	failed func(i int, err error)

	coming  map[int]*comeback // instances that are being warmed up
	closed  bool
	running sync.WaitGroup
}

// comeback is one instance's way back.
type comeback struct{ cancel context.CancelFunc }

// keepWarm makes instances that come back run the samples; ctx is the load's.
func (r *Repository) keepWarm(ctx context.Context, m *Model, samples []sample, executors []infer.Executor) {
	if len(samples) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	w := r.warmupOf(m, samples)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rewarm = &rewarmer{
		begin: func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		run: func(ctx context.Context, i int) error {
			late := make(chan struct{})
			limit := time.AfterFunc(w.limit, func() { close(late) })
			defer limit.Stop()
			return w.instance(ctx, late, executors[i])
		},
		failed: func(i int, err error) {
			r.deps.Log.Error(fmt.Sprintf("instance %d of '%s' version %d serves, but its warm-up failed after a restart: %s", i, m.Name, m.Version, err))
		},
		coming: map[int]*comeback{},
	}
}

// up begins an instance's way back; done is called once it is warm, unless it went down
// again before.
func (w *rewarmer) up(i int, done func(*comeback)) {
	if w.coming[i] != nil || w.closed {
		return
	}
	ctx, cancel := w.begin()
	c := &comeback{cancel: cancel}
	w.coming[i] = c
	w.running.Go(func() {
		defer cancel()
		err := w.run(ctx, i)
		if ctx.Err() != nil || errors.Is(err, infer.ErrWorkerLost) {
			return // it is down again, or will be; or the version is being unloaded
		}
		if err != nil {
			w.failed(i, err)
		}
		done(c)
	})
}

// arrived ends an instance's way back; false: it is not on its way any more.
func (w *rewarmer) arrived(i int, c *comeback) bool {
	if w.coming[i] != c {
		return false
	}
	delete(w.coming, i)
	return true
}

// down ends an instance's way back before its end.
func (w *rewarmer) down(i int) {
	if c := w.coming[i]; c != nil {
		c.cancel()
		delete(w.coming, i)
	}
}

// stopWarming ends all warm-up and waits for it.
func (m *Model) stopWarming() {
	m.mu.Lock()
	w := m.rewarm
	if w != nil {
		w.closed = true
		for i := range w.coming {
			w.down(i)
		}
	}
	m.mu.Unlock()
	if w != nil {
		w.running.Wait()
	}
}
