// Package build picks the scheduler that a model config asks for.
package build

import (
	"math"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/ensemble"
	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// FromConfig makes the scheduler of one model version from its completed config:
// the dynamic batcher where it has dynamic_batching and a batch dimension, otherwise
// the default scheduler. A panic on the way is an Internal error; the log has its stack.
func FromConfig(cfg *configpb.ModelConfig, version int64, deps schedule.Deps) (s schedule.Scheduler, err error) {
	defer func() {
		if v := recover(); v != nil {
			s, err = nil, infer.Recovered(v)
			deps.Log.Error("making a scheduler met a fault", "model", cfg.GetName(), "version", version, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return fromConfig(cfg, version, deps)
}

func fromConfig(cfg *configpb.ModelConfig, version int64, deps schedule.Deps) (schedule.Scheduler, error) {
	model := schedule.Model{
		Name:         cfg.GetName(),
		Version:      version,
		MaxBatchSize: int(cfg.GetMaxBatchSize()),
		Decoupled:    cfg.GetModelTransactionPolicy().GetDecoupled(),
		Ragged:       ragged.FromConfig(cfg),
	}
	for _, in := range cfg.GetInput() {
		model.Inputs = append(model.Inputs, in.GetName())
	}
	switch {
	case cfg.GetSequenceBatching() != nil:
		c, err := sequence.FromConfig(cfg, model, deps.States)
		if err != nil {
			return nil, err
		}
		return sequence.New(c, deps)
	case cfg.GetEnsembleScheduling() != nil:
		return ensemble.New(ensemble.FromConfig(cfg, model), deps)
	}
	batching := cfg.GetDynamicBatching()
	if batching == nil {
		return direct.New(direct.Config{Model: model}, deps)
	}
	policy := queuePolicy(batching.GetDefaultQueuePolicy())
	levels, err := levels(cfg)
	if err != nil {
		return nil, err
	}
	if model.MaxBatchSize < 1 {
		// Nothing can be batched; what the batcher says of queue and order still counts.
		return direct.New(direct.Config{Model: model, Policy: policy, Levels: levels, PreserveOrdering: batching.GetPreserveOrdering()}, deps)
	}
	d := dynamic.Config{
		Model:            model,
		Policy:           policy,
		Levels:           levels,
		MaxQueueDelay:    microseconds(batching.GetMaxQueueDelayMicroseconds()),
		PreserveOrdering: batching.GetPreserveOrdering(),
	}
	for _, p := range batching.GetPreferredBatchSize() {
		d.Preferred = append(d.Preferred, int(p))
	}
	return dynamic.New(d, deps)
}

// fairness is modelconfig.FairnessParameter, whose value was checked with the config.
const fairness = "priority_fairness"

func levels(cfg *configpb.ModelConfig) (schedule.Levels, error) {
	batching := cfg.GetDynamicBatching()
	l := schedule.Levels{Count: batching.GetPriorityLevels(), Default: batching.GetDefaultPriorityLevel()}
	if l.Count == 0 {
		return schedule.Levels{}, nil // the original looks at no policy of a level then
	}
	for level, p := range batching.GetPriorityQueuePolicy() {
		if l.Own == nil {
			l.Own = make(map[uint64]*schedule.QueuePolicy)
		}
		own := queuePolicy(p)
		l.Own[level] = &own
	}
	if p, ok := cfg.GetParameters()[fairness]; ok {
		n, err := strconv.Atoi(p.GetStringValue())
		if err != nil || n < 1 {
			return l, infer.Errorf(infer.InvalidArg, "parameter '%s' is '%s' for %s", fairness, p.GetStringValue(), cfg.GetName())
		}
		l.Fair = n
	}
	return l, nil
}

func queuePolicy(p *configpb.ModelQueuePolicy) schedule.QueuePolicy {
	if p == nil {
		return schedule.QueuePolicy{}
	}
	q := schedule.QueuePolicy{
		Set:             true,
		Timeout:         microseconds(p.GetDefaultTimeoutMicroseconds()),
		TimeoutOverride: p.GetAllowTimeoutOverride(),
		MaxSize:         int(p.GetMaxQueueSize()),
	}
	if p.GetTimeoutAction() == configpb.ModelQueuePolicy_DELAY {
		q.TimeoutAction = schedule.Delay
	}
	return q
}

// microseconds converts a wire field; what no Duration can hold is the longest one.
func microseconds(us uint64) time.Duration {
	if us > math.MaxInt64/uint64(time.Microsecond)/4 {
		return math.MaxInt64 / 4
	}
	return time.Duration(us) * time.Microsecond
}
