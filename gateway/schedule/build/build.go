// Package build picks the scheduler that a model config asks for.
package build

import (
	"math"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// FromConfig makes the scheduler of one model version from its completed config:
// the dynamic batcher where it has dynamic_batching and a batch dimension, otherwise
// the default scheduler. What comes with later steps (sequence_batching,
// ensemble_scheduling, priorities, timeout_action DELAY) is Unsupported and named.
func FromConfig(cfg *modelconfig.ModelConfig, version int64, deps schedule.Deps) (schedule.Scheduler, error) {
	model := schedule.Model{
		Name:         cfg.GetName(),
		Version:      version,
		MaxBatchSize: int(cfg.GetMaxBatchSize()),
		Decoupled:    cfg.GetModelTransactionPolicy().GetDecoupled(),
	}
	for _, in := range cfg.GetInput() {
		model.Inputs = append(model.Inputs, in.GetName())
	}
	switch {
	case cfg.GetSequenceBatching() != nil:
		return nil, unsupported(cfg, "sequence_batching")
	case cfg.GetEnsembleScheduling() != nil:
		return nil, unsupported(cfg, "ensemble_scheduling")
	}
	batching := cfg.GetDynamicBatching()
	if batching == nil {
		return direct.New(direct.Config{Model: model}, deps)
	}
	if batching.GetPriorityLevels() > 0 || len(batching.GetPriorityQueuePolicy()) > 0 {
		return nil, unsupported(cfg, "dynamic_batching priority_levels")
	}
	policy, err := queuePolicy(cfg)
	if err != nil {
		return nil, err
	}
	if model.MaxBatchSize < 1 {
		// Nothing can be batched; what the batcher says of queue and order still counts.
		return direct.New(direct.Config{Model: model, Policy: policy, PreserveOrdering: batching.GetPreserveOrdering()}, deps)
	}
	d := dynamic.Config{
		Model:            model,
		Policy:           policy,
		MaxQueueDelay:    microseconds(batching.GetMaxQueueDelayMicroseconds()),
		PreserveOrdering: batching.GetPreserveOrdering(),
	}
	for _, p := range batching.GetPreferredBatchSize() {
		d.Preferred = append(d.Preferred, int(p))
	}
	return dynamic.New(d, deps)
}

func queuePolicy(cfg *modelconfig.ModelConfig) (schedule.QueuePolicy, error) {
	p := cfg.GetDynamicBatching().GetDefaultQueuePolicy()
	if p == nil {
		return schedule.QueuePolicy{}, nil
	}
	if p.GetTimeoutAction() != modelconfig.ModelQueuePolicy_REJECT {
		return schedule.QueuePolicy{}, unsupported(cfg, "dynamic_batching default_queue_policy timeout_action "+p.GetTimeoutAction().String())
	}
	return schedule.QueuePolicy{
		Set:             true,
		Timeout:         microseconds(p.GetDefaultTimeoutMicroseconds()),
		TimeoutOverride: p.GetAllowTimeoutOverride(),
		MaxSize:         int(p.GetMaxQueueSize()),
	}, nil
}

// microseconds converts a wire field; what no Duration can hold is the longest one.
func microseconds(us uint64) time.Duration {
	if us > math.MaxInt64/uint64(time.Microsecond)/4 {
		return math.MaxInt64 / 4
	}
	return time.Duration(us) * time.Microsecond
}

func unsupported(cfg *modelconfig.ModelConfig, what string) error {
	return infer.Errorf(infer.Unsupported, "model '%s': %s is not supported yet", cfg.GetName(), what)
}
