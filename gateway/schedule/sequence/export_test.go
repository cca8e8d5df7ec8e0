package sequence

import (
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
)

// NewWith is New with something around each core.
func NewWith(cfg Config, deps schedule.Deps, around func(*Core) drive.Core) (*Scheduler, error) {
	cfg.gateway = deps.Sequences
	first, err := newStage(&cfg, deps.Memory)
	if err != nil {
		return nil, err
	}
	held, placed := &holds{}, &placed{}
	d, err := drive.New(drive.Config{Model: cfg.Model, Batches: true, Holds: true, Sequences: cfg.durable(),
		Preserve: cfg.Oldest != nil && cfg.Oldest.PreserveOrdering,
		Make: func() (drive.Core, drive.Stage) {
			core, stage := newPair(first, held, placed, len(deps.Executors))
			return around(core), stage
		}}, deps)
	return &Scheduler{driver: d, cfg: cfg, held: held, placed: placed}, err
}
