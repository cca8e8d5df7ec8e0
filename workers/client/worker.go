package client

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// worker is one configured worker, through all of its lives.
type worker struct {
	owner *Workers
	name  string
	place string        // its number among the workers: two may have one name
	local *LocalWorker  // one of the two is set
	far   *RemoteWorker // somebody else started it
	own   *ownProcess   // of a process beside the configured ones; nil: it is one of these
	log   *slog.Logger
	shown atomic.Pointer[answerMemory] // what it answers into; nil: it shares no memory, or is down
	alone chan struct{}                // holds one token: versions under which it died load one at a time

	regionTurn chan struct{} // holds one token: who changes the regions of its sessions takes it

	mu       sync.Mutex
	session  *session                // guarded by mu: nil while it is down
	changed  chan struct{}           // guarded by mu: closed and replaced when session changes
	closed   bool                    // guarded by mu: supervise has returned
	hello    *workerpb.HelloResponse // guarded by mu: the last one; nil before the first
	groups   map[*group]struct{}     // guarded by mu: what is loaded, or shall be again
	boxes    []int                   // guarded by mu: free mailboxes
	placed   int                     // guarded by mu: instances
	restarts int                     // guarded by mu
	since    time.Time               // guarded by mu: of the session, or of its loss
	report   *workerpb.WatchResponse // guarded by mu
}

func newWorker(owner *Workers, name string) *worker {
	w := &worker{owner: owner, name: name, place: "worker " + strconv.FormatUint(owner.numbers.Add(1), 10),
		log: owner.log.With("worker", name), changed: make(chan struct{}),
		groups: map[*group]struct{}{}, alone: make(chan struct{}, 1), regionTurn: make(chan struct{}, 1)}
	w.alone <- struct{}{}
	w.regionTurn <- struct{}{}
	for i := owner.cfg.Lane.Mailboxes - 1; i >= 0; i-- {
		w.boxes = append(w.boxes, i)
	}
	return w
}

// supervise keeps the worker running until ctx ends. The outcome of the first start
// goes to first; a local worker that fails there is not started again.
func (w *worker) supervise(ctx context.Context, first chan<- error) {
	defer w.close()
	b := backoff{base: w.owner.cfg.Backoff, most: w.owner.cfg.BackoffMax}
	for n := 0; ; n++ {
		begun := time.Now()
		s, err := w.open(ctx)
		var groups []*group
		if err == nil {
			groups = w.beginWithRegions(ctx, s) // before the news of it: who hears may ask for backends
		}
		if n == 0 {
			first <- err
			if err != nil && w.local != nil && !w.local.Program {
				return
			}
		}
		if err == nil {
			loaded := w.serve(ctx, s, groups)
			b.served(loaded.Sub(begun), time.Since(loaded), w.owner.cfg.HealthyAfter)
		} else if ctx.Err() == nil {
			w.log.Error("worker does not start", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.next()):
		}
	}
}

// open makes a session, or nothing.
func (w *worker) open(ctx context.Context) (*session, error) {
	s := newSession(w.log)
	s.arena, s.budget, s.peers, s.resident = w.owner.memory, w.owner.budget, newPeers(w.owner, s), &w.owner.resident
	s.worker = w
	var err error
	if w.local != nil && w.local.Program {
		err = s.openProgram(ctx, &w.owner.cfg, *w.local)
	} else if w.local != nil {
		err = s.openLocal(&w.owner.cfg, *w.local, w.owner.memory)
	} else if path, ok := w.far.socket(); ok {
		err = s.openSocket(ctx, &w.owner.cfg, path, w.owner.memory)
	} else {
		err = s.openRemote(*w.far)
	}
	if err == nil {
		err = s.start(ctx, &w.owner.cfg)
	}
	if err != nil {
		if s.process != nil {
			s.process.kill()
		}
		s.stopReading()
		s.end(0)
		return nil, err
	}
	return s, nil
}

// serve runs a session that has begun to its end, loading groups first, and says when they were loaded.
func (w *worker) serve(ctx context.Context, s *session, begun []*group) (loaded time.Time) {
	tasks, stop := context.WithCancel(ctx)
	defer stop()
	var reloads sync.WaitGroup
	for _, g := range begun {
		reloads.Go(func() { g.reload(tasks, s) })
	}
	s.tasks.Go(func() {
		reloads.Wait()
		loaded = time.Now()
	})
	s.tasks.Go(func() { s.watch(tasks, &w.owner.cfg, w.seen) })
	s.tasks.Go(func() { s.guard(tasks, &w.owner.cfg, w.failSilent) })
	s.tasks.Go(func() { w.openPeers(tasks, s) })
	w.log.Info("worker is up", "pid", s.hello.Pid, "version", s.hello.WorkerVersion, "local_lane", s.hello.Lane != 0)
	grace := time.Duration(0)
	select {
	case <-s.lost:
		w.log.Error("worker is lost", "pid", s.hello.Pid, "error", s.cause)
		if s.process != nil {
			s.process.kill()
		}
	case <-ctx.Done():
		grace = w.owner.cfg.KillAfter
	}
	groups := w.finish()
	w.hideAnswers(ctx)
	for _, g := range groups {
		g.down(s)
	}
	stop()
	s.stopReading()
	for _, g := range groups {
		g.fail()
	}
	ended := time.Now()
	s.end(grace) // waits for the tasks, so loaded is set
	if loaded.After(ended) {
		loaded = ended // the end came first
	}
	return loaded
}

// begin publishes a session and returns what has to be loaded.
func (w *worker) begin(s *session) []*group {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hello != nil {
		w.restarts++
	}
	w.session, w.hello, w.since = s, s.hello, time.Now()
	w.announceLocked()
	return w.groupsLocked()
}

// finish takes the session back and returns what was loaded.
func (w *worker) finish() []*group {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session, w.report, w.since = nil, nil, time.Now()
	w.announceLocked()
	return w.groupsLocked()
}

func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.announceLocked()
}

func (w *worker) announceLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *worker) groupsLocked() []*group {
	var groups []*group
	for g := range w.groups {
		groups = append(groups, g)
	}
	return groups
}

func (w *worker) seen(m *workerpb.WatchResponse) {
	w.mu.Lock()
	w.report = m
	groups := w.groupsLocked()
	w.mu.Unlock()
	for _, g := range groups {
		g.reported(m.GetModels())
	}
}

// await is current for whom it serves: it waits no longer than Config.WaitTime.
func (w *worker) await(ctx context.Context) (*session, error) {
	most := w.owner.cfg.WaitTime
	ctx, stop := context.WithTimeoutCause(ctx, most, fmt.Errorf("it has been down for %v", most))
	defer stop()
	return w.current(ctx)
}

// current waits until the worker is up.
func (w *worker) current(ctx context.Context) (*session, error) {
	for {
		w.mu.Lock()
		s, changed, closed := w.session, w.changed, w.closed
		w.mu.Unlock()
		switch {
		case s != nil && !s.isLost():
			return s, nil
		case closed:
			return nil, infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the worker is stopped")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "the worker is not ready: %w", context.Cause(ctx))
		}
	}
}

// takeBoxes reserves mailboxes for n instances.
func (w *worker) takeBoxes(n int) ([]int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > len(w.boxes) {
		return nil, infer.Errorf(infer.ResourceExhausted, "%d more instances on one worker, there is room for %d", n, len(w.boxes))
	}
	at := len(w.boxes) - n
	boxes := append([]int(nil), w.boxes[at:]...)
	w.boxes = w.boxes[:at]
	w.placed += n
	return boxes, nil
}

func (w *worker) returnBoxes(boxes []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes = append(w.boxes, boxes...)
	w.placed -= len(boxes)
}
