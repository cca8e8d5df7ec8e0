package python

import (
	"context"
	"time"
)

const (
	// servedWell is how long a process must have lived for its end to count as the first.
	servedWell = time.Minute
	// longestPause bounds the pauses between starts, which are 0, 1, 2, 4 … seconds.
	longestPause = 30 * time.Second
	// lookEvery is how often a process's memory is looked at, and whether it has no more requests.
	lookEvery = time.Second
)

// pauses are those between the starts of a process. It is plain state.
type pauses struct{ next time.Duration }

// after is the pause after a process that lived so long.
func (p *pauses) after(lived time.Duration) time.Duration {
	if lived >= servedWell {
		p.next = 0
	}
	pause := p.next
	p.next = min(max(2*pause, time.Second), longestPause)
	return pause
}

// supervise starts the process again whenever it has ended, and replaces one that is used up,
// until ctx ends.
func (in *instance) supervise(ctx context.Context) {
	defer close(in.done)
	var look <-chan time.Time
	if in.model.limits.rss > 0 {
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		look = t.C
	}
	var p pauses
	r, since := in.run, time.Now()
	for {
		next := r
		select {
		case <-r.gone:
			next = in.again(ctx, r, &p, time.Since(since))
		case <-in.full:
			if r.served.Load() >= in.model.limits.requests {
				next = in.replace(ctx, r, "requests", r.served.Load())
			}
		case <-look:
			if n, err := r.process.RSS(); err == nil && n > in.model.limits.rss {
				next = in.replace(ctx, r, "resident_bytes", n)
			}
		case <-ctx.Done():
			return
		}
		if next == nil {
			return
		}
		if next != r {
			r, since = next, time.Now()
		}
	}
}

// again starts a process in place of one that has ended; nil: ctx has ended.
func (in *instance) again(ctx context.Context, r *run, p *pauses, lived time.Duration) *run {
	cause := r.cause()
	in.untold.Store(true)
	in.set(nil, cause)
	in.log.Error("a Python process has ended and is started again", "pid", r.process.Pid(), "error", cause)
	in.retiring.Go(func() { // a call may be waited for
		if err := r.close(); err != nil {
			in.log.Error("the memory of a Python process can't be given back", "error", err)
		}
	})
	for {
		if !rest(ctx, p.after(lived)) {
			return nil
		}
		next, err := in.start(ctx)
		if err == nil {
			in.set(next, nil)
			in.log.Info("a Python process was started again", "pid", next.process.Pid())
			return next
		}
		if ctx.Err() != nil {
			return nil
		}
		lived = 0
		in.set(nil, err)
		in.log.Error("a Python process can't be started again", "error", err)
	}
}

// replace starts a process in place of one that has used up what it may, which ends when it has no
// more requests. It gives the one that serves.
func (in *instance) replace(ctx context.Context, r *run, what string, used any) *run {
	r.retire()
	next, err := in.start(ctx)
	if err != nil {
		if ctx.Err() == nil {
			in.log.Error("a Python process can't be replaced", what, used, "error", err)
		}
		return r
	}
	in.set(next, nil)
	in.log.Info("a Python process is replaced", what, used, "pid", r.process.Pid(), "next_pid", next.process.Pid())
	in.retiring.Go(func() {
		r.users.Wait() // for its last batch
		if r.drained(ctx) || r.shared() && !r.isGone() {
			if err := r.finish(); err != nil {
				r.log.Error("the memory of a Python process can't be given back", "error", err)
			}
			return
		}
		if err := r.discard(nil); err != nil {
			r.log.Error("the memory of a Python process can't be given back", "error", err)
		}
	})
	return next
}

// drained waits until the process has no more requests; false: it has ended, or ctx has.
func (r *run) drained(ctx context.Context) bool {
	t := time.NewTicker(lookEvery / 50)
	defer t.Stop()
	for len(r.slots.all()) > 0 {
		select {
		case <-t.C:
		case <-r.gone:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return !r.isGone()
}

// rest waits for d; false: ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
