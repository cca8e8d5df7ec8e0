// Package direct is the default scheduler: requests go in order of priority and
// arrival to the first free instance, each in a batch of its own. Unlike the original's, its line is
// bounded, timeouts count in it, and a caller that leaves takes its request along.
package direct

import (
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// Config is the default scheduler of one model version.
type Config struct {
	Model  schedule.Model
	Policy schedule.QueuePolicy // the zero value is the original's behaviour, bounded
	Levels schedule.Levels
	// PreserveOrdering hands answers over in the order in which requests were queued.
	PreserveOrdering bool
}

// Scheduler is a schedule.Scheduler.
type Scheduler struct{ *drive.Driver }

var _ schedule.Scheduler = (*Scheduler)(nil)

// New makes a scheduler with every instance in service. Drain ends it.
func New(cfg Config, deps schedule.Deps) (*Scheduler, error) {
	d, err := drive.New(drive.Config{Model: cfg.Model, Policy: cfg.Policy, Levels: cfg.Levels, Preserve: cfg.PreserveOrdering,
		Make: func() (drive.Core, drive.Stage) {
			return queue.New(one{}, drive.Lines(cfg.Policy, cfg.Levels), len(deps.Executors)), nil
		}}, deps)
	if err != nil {
		return nil, err
	}
	return &Scheduler{d}, nil
}

type one struct{}

// Cut lets every request go alone.
func (one) Cut(*queue.Entry, int64) (int, int64) { return 1, 0 }
