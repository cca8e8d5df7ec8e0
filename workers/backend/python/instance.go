package python

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

const (
	// restartWait is how long a batch waits for a process that is being started.
	restartWait = 10 * time.Second
	// othersWait is how long it waits where other instances of the model execute. The gateway has been
	// told by then, every 2 s, which instances can't, and does not execute it here again.
	othersWait = 3 * time.Second
)

// instance is an instance of a model, whose process may be another one after each end.
type instance struct {
	model *model
	spec  backend.InstanceSpec
	name  string
	log   *slog.Logger

	// The goroutine's own, used again by every batch.
	spare      *batch
	encoder    channel.Encoder
	reply      channel.Encoder // of answers to calls
	answers    []channel.Response
	executions uint64
	grant      int64 // bytes for answers that a batch has with it

	current atomic.Pointer[batch] // in execution
	// untold says that states of sequences were lost, and the gateway does not know.
	untold   atomic.Bool
	full     chan struct{}  // one token: the process has had as many requests as it may
	retiring sync.WaitGroup // processes that were replaced

	stop context.CancelFunc // of the supervisor
	done chan struct{}      // closed when it has ended

	mu      sync.Mutex
	run     *run          // guarded by mu: what executes; nil: it is being started
	cause   error         // guarded by mu: why there is none
	changed chan struct{} // guarded by mu: closed when run has changed
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(ctx context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	in := &instance{model: m, spec: spec, done: make(chan struct{}), changed: make(chan struct{}),
		full: make(chan struct{}, 1)}
	in.name = instanceName(spec, m)
	in.log = m.log.With("instance", in.name)
	r, err := in.start(ctx)
	if err != nil {
		return nil, err
	}
	in.run = r
	m.executing.Add(1)
	var life context.Context
	life, in.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.backend.watch.add(in)
	go in.supervise(life)
	return in, nil
}

// Close fits backend.Instance: the model finalizes, and its process ends.
func (in *instance) Close() error {
	in.stop()
	<-in.done
	in.retiring.Wait()
	in.model.backend.watch.remove(in)
	in.mu.Lock()
	r := in.run
	in.run = nil
	in.mu.Unlock()
	if r == nil {
		return nil
	}
	in.model.executing.Add(-1)
	return r.finish()
}

// finish has the model finalize and ends the process.
func (r *run) finish() error {
	r.channel.SetEnding()
	t := time.AfterFunc(finalizeTimeout, func() {
		r.hung(infer.Errorf(infer.Internal, "finalize took longer than %v", finalizeTimeout))
	})
	defer t.Stop()
	f, err := r.command(channel.Finalize, channel.Finalized, 0, nil, false)
	switch {
	case err != nil:
		r.log.Warn("the process ended while the model was finalized", "error", err)
	case f.Kind == channel.Failed:
		r.logFailed(f, "finalize failed")
	}
	return r.ended()
}

// serving is the process that executes; its users must count it off. While one is being started
// that is waited for, a bounded time. A batch that may be executed by others then fails as lost,
// so that the gateway has it executed once more.
func (in *instance) serving() (*run, error) {
	var late <-chan time.Time
	for {
		in.mu.Lock()
		r, cause, changed := in.run, in.cause, in.changed
		if r != nil && !r.isGone() {
			r.users.Add(1)
			in.mu.Unlock()
			return r, nil
		}
		in.mu.Unlock()
		if late == nil {
			wait := restartWait
			if in.othersExecute() {
				wait = othersWait
			}
			t := time.NewTimer(wait)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-changed:
		case <-late:
			if cause == nil {
				cause = errors.New("its process is being started")
			}
			reason := infer.ReasonNotReady
			if in.othersExecute() {
				reason = infer.ReasonWorkerLost
			}
			return nil, infer.Refusef(infer.Unavailable, reason, "%s (%w)", unhealthy(in.name), cause)
		}
	}
}

// othersExecute says that another instance may take a batch in place of this one, whose process is
// being started.
func (in *instance) othersExecute() bool { return !in.model.stateful && in.model.executing.Load() > 0 }

// Fault fits backend.Instance.
func (in *instance) Fault() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.run != nil && !in.run.isGone():
		return nil
	case in.cause != nil:
		return in.cause
	}
	return errors.New("its process is being started")
}

// set says which process executes, or why none does.
func (in *instance) set(r *run, cause error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if was := in.run; was == nil && r != nil {
		in.model.executing.Add(1)
	} else if was != nil && r == nil {
		in.model.executing.Add(-1)
	}
	in.run, in.cause = r, cause
	close(in.changed)
	in.changed = make(chan struct{})
}
