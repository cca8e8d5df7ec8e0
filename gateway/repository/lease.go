package repository

import (
	"context"
	"fmt"
	"sync"
)

// lease is what a load holds besides its versions: the run of its repository agents and
// the folder of the files that came with the load call. It ends with the last version
// that was built under it. The nil lease holds nothing.
type lease struct {
	run   AgentRun   // nil: no agents
	dir   string     // "": no files came with the call
	files *callFiles // in dir
	name  string
	r     *Repository

	once   sync.Once // of EventUnload
	uses   int       // under r.mu: versions, and the load itself until it is decided
	failed bool      // under r.mu: nothing of the load is served
}

// fail ends a load of which nothing is served.
func (l *lease) fail(ctx context.Context) {
	l.once.Do(func() {}) // what was never in service is not unloaded
	l.r.mu.Lock()
	l.failed = true
	l.r.mu.Unlock()
	l.give(ctx)
}

// leave is the beginning of a version's end.
func (l *lease) leave(ctx context.Context) {
	if l != nil {
		l.once.Do(func() { l.tell(ctx, EventUnload) })
	}
}

// take counts one more version.
func (l *lease) take() {
	if l != nil {
		l.r.mu.Lock()
		l.uses++
		l.r.mu.Unlock()
	}
}

// give counts one less; the last one ends the lease.
func (l *lease) give(ctx context.Context) {
	if l == nil {
		return
	}
	l.r.mu.Lock()
	l.uses--
	over, last := l.uses == 0, EventUnloadComplete
	if l.failed {
		last = EventLoadFail
	}
	l.r.mu.Unlock()
	if !over {
		return
	}
	l.tell(ctx, last)
	if l.files != nil {
		if err := l.files.remove(); err != nil {
			l.r.deps.Log.Error(fmt.Sprintf("removing the files of '%s': %s", l.name, err))
		}
	}
}

func (l *lease) tell(ctx context.Context, event AgentEvent) {
	if l == nil || l.run == nil {
		return
	}
	if err := l.run.Tell(context.WithoutCancel(ctx), event); err != nil {
		l.r.deps.Log.Error(fmt.Sprintf("a repository agent of '%s' returns error on %s: %s", l.name, event, err))
	}
}
