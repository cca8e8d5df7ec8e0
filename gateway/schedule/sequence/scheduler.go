package sequence

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/infer"
)

type driver = drive.Driver

var _ schedule.Scheduler = (*Scheduler)(nil)

// New makes a scheduler with every instance in service. Drain ends it.
func New(cfg Config, deps schedule.Deps) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.gateway = deps.Sequences
	first, err := newStage(&cfg, deps.Memory)
	if err != nil {
		return nil, err
	}
	held, placed := &holds{}, &placed{to: cfg.gateway.Placements}
	d, err := drive.New(drive.Config{
		Model:     cfg.Model,
		Make:      func() (drive.Core, drive.Stage) { return newPair(first, held, placed, len(deps.Executors)) },
		Batches:   true,
		Holds:     true,
		Preserve:  cfg.Oldest != nil && cfg.Oldest.PreserveOrdering,
		Sequences: cfg.durable(),
	}, deps)
	if err != nil {
		return nil, err
	}
	return &Scheduler{driver: d, cfg: cfg, held: held, placed: placed}, nil
}

// newPair makes a core and the stage that belongs to it, after the pattern of one that was
// not used. Of a core before it no sequence is left.
func newPair(pattern *stage, held *holds, placed *placed, instances int) (*Core, *stage) {
	held.endAll()
	placed.endAll(true)
	s := pattern.another()
	r := s.cfg.rules(instances)
	r.held, r.placed = held.note, placed
	r.null, r.request = drive.NewNull(&infer.Request{Model: s.cfg.Model.Name, Rows: 1}), drive.RequestOf
	if s.varies() {
		r.stateKey = s.key
	}
	s.null, r.drop = r.null, s.drop
	return newCore(r), s
}

// Do is schedule.Scheduler.Do. Further errors: InvalidArg for a request that belongs to
// no sequence, or to one that is not known; ResourceExhausted for a START of a caller that
// may have no further sequence; Unavailable with reason sequence_slots for one that found
// no slot, with sequence_lost for one whose sequence was lost with its worker, with it or
// sequence_unplaced for one that a mesh's picker has not placed here.
// Source: SequenceBatchScheduler::Enqueue of the original, texts likewise.
func (s *Scheduler) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	switch {
	case req.Rows > 1:
		return infer.Errorf(infer.InvalidArg, "inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher",
			s.cfg.Model.Name)
	case req.Correlation.IsZero() && !s.cfg.Iterative:
		return infer.Errorf(infer.InvalidArg, "inference request to model '%s' must specify a non-zero or non-empty correlation ID",
			s.cfg.Model.Name)
	}
	for i := range s.cfg.Controls {
		if err := s.cfg.Controls[i].fits(req.Correlation, s.cfg.Model.Name); err != nil {
			return err
		}
	}
	if !req.SequenceStart || s.cfg.gateway.Limits == nil || s.cfg.Iterative {
		return s.outcome(req, s.driver.Do(ctx, req, send))
	}
	b := begin(ctx, s.cfg.gateway.Limits, req)
	if b == nil {
		return s.outcome(req, s.driver.Do(ctx, req, send))
	}
	defer b.end()
	return s.outcome(req, s.driver.DoOf(ctx, req, send, b))
}

// Drain is schedule.Scheduler.Drain. No limit counts a sequence of the scheduler afterwards.
func (s *Scheduler) Drain(ctx context.Context) error {
	defer s.held.endAll()
	defer s.placed.endAll(false)
	return s.driver.Drain(ctx)
}
