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
	stage, err := newStage(&cfg, deps.Memory)
	if err != nil {
		return nil, err
	}
	r := cfg.rules(len(deps.Executors))
	r.null, r.request = drive.NewNull(&infer.Request{Model: cfg.Model.Name, Rows: 1}), drive.RequestOf
	if stage.varies() {
		r.stateKey = stage.key
	}
	stage.null, r.drop = r.null, stage.drop
	d, err := drive.New(drive.Config{
		Model:     cfg.Model,
		Core:      newCore(r),
		Stage:     stage,
		Batches:   true,
		Holds:     true,
		Preserve:  cfg.Oldest != nil && cfg.Oldest.PreserveOrdering,
		Sequences: r.durable,
	}, deps)
	if err != nil {
		return nil, err
	}
	return &Scheduler{driver: d, cfg: cfg}, nil
}

// Do is schedule.Scheduler.Do. Further errors: InvalidArg for a request that belongs to
// no sequence, or to one that is not known.
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
	return s.driver.Do(ctx, req, send)
}
