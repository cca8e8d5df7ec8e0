// Package dynamic is the dynamic batcher: requests with the same shapes and the same
// inputs, in order of priority and arrival, leave together. A batch leaves as soon as an instance is
// free; a configured delay holds it back only while it can still grow to a size that
// the config prefers, and never longer than its oldest request may wait.
package dynamic

import (
	"slices"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// Config is dynamic_batching of one model version in Go units.
// Source: message ModelDynamicBatching, proto/modelconfig/model_config.proto.
type Config struct {
	Model  schedule.Model // MaxBatchSize is at least 1
	Policy schedule.QueuePolicy
	Levels schedule.Levels
	// Preferred are sizes in rows, in any order; each within 1 and MaxBatchSize. None:
	// MaxBatchSize is what a batch may wait for.
	Preferred     []int
	MaxQueueDelay time.Duration // longest wait of a batch's oldest request; 0: none
	// PreserveOrdering hands answers over in the order in which requests were queued.
	PreserveOrdering bool
}

// Scheduler is a schedule.Scheduler.
type Scheduler struct{ *drive.Driver }

var _ schedule.Scheduler = (*Scheduler)(nil)

// New makes a scheduler with every instance in service. Drain ends it.
func New(cfg Config, deps schedule.Deps) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d, err := drive.New(drive.Config{
		Model:  cfg.Model,
		Policy: cfg.Policy,
		Levels: cfg.Levels,
		Make: func() (drive.Core, drive.Stage) {
			return queue.New(newBatcher(cfg.Model.MaxBatchSize, cfg.Preferred, cfg.MaxQueueDelay),
				drive.Lines(cfg.Policy, cfg.Levels), len(deps.Executors)), nil
		},
		Batches:  true,
		Holds:    cfg.MaxQueueDelay > 0,
		Preserve: cfg.PreserveOrdering,
	}, deps)
	if err != nil {
		return nil, err
	}
	return &Scheduler{d}, nil
}

func (c *Config) validate() error {
	if c.Model.MaxBatchSize < 1 {
		return infer.Errorf(infer.InvalidArg, "model '%s': dynamic batching needs a max_batch_size of at least 1", c.Model.Name)
	}
	for _, p := range c.Preferred {
		if p < 1 {
			return infer.Errorf(infer.InvalidArg, "dynamic batching preferred size must be positive for %s", c.Model.Name)
		}
		if p > c.Model.MaxBatchSize {
			return infer.Errorf(infer.InvalidArg, "dynamic batching preferred size must be <= max batch size for %s", c.Model.Name)
		}
	}
	if c.MaxQueueDelay < 0 {
		return infer.Errorf(infer.InvalidArg, "model '%s': max_queue_delay_microseconds is negative", c.Model.Name)
	}
	return nil
}

func sortedCopy(sizes []int) []int {
	s := slices.Clone(sizes)
	slices.Sort(s)
	return slices.Compact(s)
}
