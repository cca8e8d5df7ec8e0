package repository

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// abandonedTime is how long work that was abandoned may keep its load thread.
const abandonedTime = 30 * time.Second

// threadWork is what a load does on a load thread.
type threadWork[T any] struct {
	// do makes it. fail ends ctx, and so the load, with an error of its own. undo is for what has
	// to be freed again: it outlasts ctx, and ends when the server does not wait any longer.
	do func(ctx, undo context.Context, fail context.CancelCauseFunc) (T, error)
	// drop frees what do made when nobody waits for it any more.
	drop func(undo context.Context, made T)
}

// onThread does a load's work on a load thread and waits for it. When the load's context ends
// first it returns at once: much of a load can't be interrupted, such as a worker that opens a
// model, or a batch of warm-up. The work then goes on by itself, what it makes is dropped, and
// the thread is kept until then, for abandonedTime at most. Close waits for it, and the lease
// stays as long.
func onThread[T any](ctx context.Context, c *change, w threadWork[T]) (made T, err error) {
	give, err := c.r.threads.take(ctx)
	if err != nil {
		return made, err
	}
	type result struct {
		made T
		err  error
	}
	ctx, fail := context.WithCancelCause(ctx)
	c.r.mu.Lock()
	undo, end := c.r.countLocked(context.WithoutCancel(ctx), c.r.leaving)
	c.r.mu.Unlock()
	c.lease.take()
	done, abandoned := make(chan result), make(chan struct{})
	go func() {
		defer end()
		defer give()
		defer c.lease.give(undo)
		made, err := w.do(ctx, undo, fail)
		select {
		case done <- result{made, err}:
		case <-abandoned:
			if err == nil {
				w.drop(undo, made)
			}
		}
	}()
	select {
	case r := <-done:
		fail(nil)
		return r.made, r.err
	case <-ctx.Done():
		close(abandoned)
		time.AfterFunc(abandonedTime, give)
		return made, stopped(ctx)
	}
}

// open reads and checks the config. It holds a load thread: reading many at once would only move
// the disk's head.
func (c *change) open(ctx context.Context, f Folder) (*Plan, error) {
	type opened struct {
		plan *Plan
		err  error
	}
	o, err := onThread(ctx, c, threadWork[opened]{
		do: func(_, _ context.Context, _ context.CancelCauseFunc) (opened, error) {
			p, err := Open(f, &c.r.cfg, c.r.deps.Workers)
			return opened{p, err}, nil // a plan comes with an error, too
		},
		drop: func(context.Context, opened) {},
	})
	if err != nil {
		return &Plan{}, err
	}
	return o.plan, o.err
}

// tryBuild builds a version on a load thread, with the configured number of further tries, for as
// long as it may take in all.
func (c *change) tryBuild(ctx context.Context, n int64) (*Model, error) {
	r := c.r
	return onThread(ctx, c, threadWork[*Model]{
		do: func(ctx, undo context.Context, fail context.CancelCauseFunc) (m *Model, err error) {
			limit := r.cfg.loadTime()
			late := time.AfterFunc(limit, func() {
				fail(infer.Errorf(infer.Unavailable, "'%s' version %d did not load in %v (--model-load-max-secs)", c.k.name, n, limit))
			})
			defer late.Stop()
			for try := range 1 + max(0, r.cfg.LoadRetries) {
				if try > 0 {
					r.deps.Log.Warn(fmt.Sprintf("loading '%s' version %d again: %s", c.plan.Folder.Name, n, err))
				}
				if m, err = c.make(ctx, undo, fail, n); err == nil || ctx.Err() != nil {
					return m, err
				}
			}
			return nil, err
		},
		drop: func(undo context.Context, m *Model) {
			if err := r.retire(undo, m); err != nil {
				r.deps.Log.Error(err.Error())
			}
		},
	})
}
