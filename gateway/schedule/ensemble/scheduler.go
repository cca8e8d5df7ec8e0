package ensemble

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

const (
	// maxDepth bounds ensembles of ensembles. Cycles are refused when they are loaded;
	// this is for those that come about by a reload.
	maxDepth = 32
	// maxFrames is how many answers of a decoupled step are under way at one time in one
	// request, where the config sets no max_inflight_requests. The original has no bound.
	maxFrames = 64
)

// Scheduler is the schedule.Scheduler of an ensemble version.
type Scheduler struct {
	cfg     Config
	deps    schedule.Deps
	version string
	graph   *graph
	slots   []chan struct{} // by step, one token for each request under way; nil: no limit

	mu       sync.Mutex
	runs     map[*runner]struct{} // mu
	stopping bool                 // mu
	idle     chan struct{}        // closed when stopping and runs is empty
}

var _ schedule.Scheduler = (*Scheduler)(nil)

// New makes a scheduler. It starts nothing.
func New(cfg Config, deps schedule.Deps) (*Scheduler, error) {
	switch {
	case deps.Steps == nil:
		return nil, infer.Errorf(infer.Internal, "ensemble '%s' has no way to run its steps", cfg.Model.Name)
	case deps.Log == nil:
		return nil, infer.Errorf(infer.Internal, "a scheduler needs a log")
	}
	s := &Scheduler{cfg: cfg, deps: deps, version: strconv.FormatInt(cfg.Model.Version, 10), graph: newGraph(&cfg),
		runs: map[*runner]struct{}{}, idle: make(chan struct{})}
	if cfg.MaxInflight > 0 {
		for range cfg.Steps {
			s.slots = append(s.slots, make(chan struct{}, cfg.MaxInflight))
		}
		deps.Log.Info("Ensemble model '"+cfg.Model.Name+"' configured with max_inflight_requests: "+strconv.Itoa(cfg.MaxInflight),
			slog.Int("steps", len(cfg.Steps)))
	}
	return s, nil
}

// Do is Scheduler.Do. Its errors are those of the step that failed first, with the names
// of the ensemble and the step; the other steps are cancelled. All of them have ended
// when it returns.
func (s *Scheduler) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	req.Times.QueueStart = infer.Now()
	if req.Depth >= maxDepth {
		return infer.Errorf(infer.InvalidArg, "%sensembles are nested more than %d deep at '%s'", req.Prefix(), maxDepth, s.cfg.Model.Name)
	}
	again, err := s.try(ctx, &runner{s: s, req: req, send: send})
	if again {
		_, err = s.try(ctx, &runner{s: s, req: req, send: send, onHost: true})
	}
	return err
}

// try runs the steps once. again says that a tensor was lost on its device, of which nothing was
// answered yet: the steps may run once more.
func (s *Scheduler) try(ctx context.Context, r *runner) (again bool, err error) {
	r.news.L = &r.mu
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if err := s.enter(r); err != nil {
		return false, err
	}
	defer s.leave(r)
	err = r.do()
	return err != nil && !r.onHost && r.mayRepeat() && errors.Is(err, infer.ErrTensorLost), err
}

func (s *Scheduler) enter(r *runner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return s.stoppingError(r.req)
	}
	s.runs[r] = struct{}{}
	return nil
}

func (s *Scheduler) leave(r *runner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, r)
	if s.stopping && len(s.runs) == 0 {
		close(s.idle)
	}
}

func (s *Scheduler) stoppingError(req *infer.Request) error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "%smodel '%s' version %s is stopping", req.Prefix(), s.cfg.Model.Name,
		s.version)
}

// InstanceDown is Scheduler.InstanceDown: an ensemble has no instances.
func (s *Scheduler) InstanceDown(int) {}

// InstanceUp is Scheduler.InstanceUp: an ensemble has no instances.
func (s *Scheduler) InstanceUp(int) {}

// Ready is Scheduler.Ready. Whether its steps' models are, the repository knows.
func (s *Scheduler) Ready() int { return 1 }

// Start is Scheduler.Start: somebody must wait for a run.
func (s *Scheduler) Start(context.Context, *infer.Request, infer.Sink) bool { return false }

// Fault is Scheduler.Fault: a panic ends one run.
func (s *Scheduler) Fault() error { return nil }

// Turn is Scheduler.Turn: an ensemble keeps no order.
func (s *Scheduler) Turn(context.Context, *infer.Request) error { return nil }

// Busy is Scheduler.Busy: an ensemble has no instances.
func (s *Scheduler) Busy() int { return 0 }

// Pending is Scheduler.Pending: requests wait at the steps.
func (s *Scheduler) Pending() int { return 0 }

// Drain is Scheduler.Drain. Requests that are cancelled may still end after it: their
// steps' models wait for them, and a caller that is slow to take an answer has it already.
func (s *Scheduler) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		if len(s.runs) == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	n := len(s.runs)
	for r := range s.runs {
		r.cancel(s.stoppingError(r.req))
	}
	s.mu.Unlock()
	if n == 0 {
		return nil
	}
	return infer.Errorf(infer.Cancelled, "model '%s' version %s: %d requests failed while stopping: %w", s.cfg.Model.Name, s.version,
		n, context.Cause(ctx))
}
