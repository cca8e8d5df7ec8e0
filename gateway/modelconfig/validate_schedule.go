package modelconfig

import (
	"fmt"
	"strings"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

func (v *validation) scheduling() {
	if d := v.cfg.GetDynamicBatching(); d != nil {
		v.dynamic(d)
		v.fairness()
	}
	if s := v.cfg.GetSequenceBatching(); s != nil {
		v.sequence(s)
	}
	cached := v.cfg.GetResponseCache().GetEnable()
	if cached && v.cfg.GetSequenceBatching() != nil {
		v.addf("response_cache", "Response Cache does not currently support model %s with sequence batching scheduler. "+
			"Please disable the response cache.", v.cfg.Name)
	}
	if cached && v.cfg.GetModelTransactionPolicy().GetDecoupled() {
		v.addf("response_cache", "Response Cache does not currently support model %s with 'decoupled' transaction policy. "+
			"Please disable the response cache.", v.cfg.Name)
	}
}

func (v *validation) dynamic(d *modelconfig.ModelDynamicBatching) {
	name, path := v.cfg.Name, "dynamic_batching"
	for _, size := range d.PreferredBatchSize {
		if size <= 0 {
			v.addf(path+".preferred_batch_size", "dynamic batching preferred size must be positive for %s", name)
		} else if size > v.cfg.MaxBatchSize {
			v.addf(path+".preferred_batch_size", "dynamic batching preferred size must be <= max batch size for %s: %d is more than %d",
				name, size, v.cfg.MaxBatchSize)
		}
	}
	if d.MaxQueueDelayMicroseconds > maxMicroseconds {
		v.addf(path+".max_queue_delay_microseconds", "max_queue_delay_microseconds %d is more than a day for %s",
			d.MaxQueueDelayMicroseconds, name)
	}
	levels := d.PriorityLevels
	if levels != 0 {
		if d.DefaultPriorityLevel == 0 || d.DefaultPriorityLevel > levels {
			v.addf(path+".default_priority_level", "default priority level must be in range [1, %d] for %s", levels, name)
		}
		for level := range d.PriorityQueuePolicy {
			if level == 0 || level > levels {
				v.addf(path+".priority_queue_policy", "priority queue policy must have priority level in range [1, %d] for %s", levels, name)
			}
		}
	}
	if !d.PreserveOrdering {
		return
	}
	if levels > 1 {
		v.addf(path+".preserve_ordering", "Only one priority level is allowed when 'preserve_ordering' is true for %s", name)
	}
	delays := func(p *modelconfig.ModelQueuePolicy) bool {
		return p.GetDefaultTimeoutMicroseconds() != 0 && p.GetTimeoutAction() == modelconfig.ModelQueuePolicy_DELAY
	}
	bad := delays(d.DefaultQueuePolicy)
	for _, p := range d.PriorityQueuePolicy {
		bad = bad || delays(p)
	}
	if bad {
		v.addf(path+".preserve_ordering", "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for %s", name)
	}
}

// maxMicroseconds is a day: a longer delay is a mistake in the unit.
const maxMicroseconds = 24 * 60 * 60 * 1000 * 1000

func (v *validation) sequence(s *modelconfig.ModelSequenceBatching) {
	const path = "sequence_batching"
	name := v.cfg.Name
	seen := map[string]bool{}
	kinds := map[modelconfig.ModelSequenceBatching_Control_Kind]bool{}
	for i, in := range s.ControlInput {
		at := fmt.Sprintf("%s.control_input[%d]", path, i)
		switch {
		case in.Name == "":
			v.addf(at, "sequence batching control tensor must have a name for %s", name)
		case seen[in.Name]:
			v.addf(at, "sequence batching control tensor '%s' is specified for multiple control kinds for %s", in.Name, name)
		}
		seen[in.Name] = true
		for _, c := range in.Control {
			if kinds[c.Kind] {
				v.addf(at, "sequence batching specifies multiple %s tensors for %s", c.Kind, name)
			}
			kinds[c.Kind] = true
			v.control(at, c)
		}
	}
	if o := s.GetOldest(); o != nil {
		for _, size := range o.PreferredBatchSize {
			if size <= 0 {
				v.addf(path+".oldest.preferred_batch_size", "sequence batching preferred batch size must be positive for %s", name)
			} else if size > v.cfg.MaxBatchSize {
				v.addf(path+".oldest.preferred_batch_size", "sequence batching preferred batch size must be <= max batch size for %s", name)
			}
		}
	}
	if u := s.GetDirect().GetMinimumSlotUtilization(); !(u >= 0 && u <= 1) {
		v.addf(path+".direct.minimum_slot_utilization", "sequence batching minimum slot utilization must be in range (0.0, 1.0] for %s", name)
	}
	v.states(s.State)
}

func (v *validation) control(path string, c *modelconfig.ModelSequenceBatching_Control) {
	name := v.cfg.Name
	pairs := 0
	for kind, n := range map[string]int{"int32": len(c.Int32FalseTrue), "fp32": len(c.Fp32FalseTrue), "bool": len(c.BoolFalseTrue)} {
		if n == 0 {
			continue
		}
		pairs++
		if n != 2 {
			v.addf(path, "sequence batching control '%s_false_true' must have exactly 2 entries for %s for %s", kind, c.Kind, name)
		}
	}
	if c.Kind == modelconfig.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID {
		if pairs > 0 {
			v.addf(path, "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for %s for %s", c.Kind, name)
		}
		switch c.DataType {
		case modelconfig.DataType_TYPE_UINT64, modelconfig.DataType_TYPE_INT64, modelconfig.DataType_TYPE_UINT32,
			modelconfig.DataType_TYPE_INT32, modelconfig.DataType_TYPE_STRING:
		default:
			v.addf(path, "unexpected data type for control %s for %s. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, "+
				"TYPE_INT32 and TYPE_STRING", c.Kind, name)
		}
		return
	}
	switch {
	case pairs == 0:
		v.addf(path, "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for %s for %s", c.Kind, name)
	case pairs > 1:
		v.addf(path, "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for %s for %s",
			c.Kind, name)
	}
}

// ensemble checks what a config alone can tell; CheckEnsemble compares it with its
// steps' models.
func (v *validation) ensemble() {
	cfg := v.cfg
	e := cfg.GetEnsembleScheduling()
	if e == nil {
		if cfg.Platform == PlatformEnsemble {
			v.addf("platform", "ensemble scheduling must be set for ensemble %s whose platform is %s", cfg.Name, PlatformEnsemble)
		}
		return
	}
	if cfg.Platform != PlatformEnsemble {
		v.addf("platform", "ensemble scheduling cannot be set for model '%s' whose platform is not %s", cfg.Name, PlatformEnsemble)
	}
	if len(cfg.InstanceGroup) != 0 {
		v.addf("instance_group", "instance group should not be specified for ensemble '%s'", cfg.Name)
	}
	if cfg.Optimization != nil {
		v.addf("optimization", "optimization should not be specified for ensemble '%s'", cfg.Name)
	}
	if len(cfg.ModelWarmup) != 0 {
		v.addf("model_warmup", "model_warmup can not be specified for ensemble '%s'", cfg.Name)
	}
	if len(e.Step) == 0 {
		v.addf("ensemble_scheduling", "must specify 'step' for ensemble '%s'", cfg.Name)
	}
	whole := len(v.Faults)
	for i, s := range e.Step {
		path := fmt.Sprintf("ensemble_scheduling.step[%d]", i)
		if s.ModelName == "" {
			v.addf(path, "must specify 'model_name' in step %d of ensemble '%s'", i, cfg.Name)
		}
		if len(s.InputMap) == 0 {
			v.addf(path, "must specify 'input_map' in step %d of ensemble '%s'", i, cfg.Name)
		}
		if len(s.OutputMap) == 0 {
			v.addf(path, "must specify 'output_map' in step %d of ensemble '%s'", i, cfg.Name)
		}
	}
	if len(v.Faults) == whole {
		v.dataFlow()
	}
}

func (v *validation) modelMetrics() {
	for i, m := range v.cfg.GetModelMetrics().GetMetricControl() {
		path := fmt.Sprintf("model_metrics.metric_control[%d]", i)
		switch {
		case m.MetricIdentifier == nil:
			v.addf(path, "metric control must specify 'metric_identifier'")
		case m.MetricIdentifier.Family == "":
			v.addf(path, "metric identifier must specify non-empty 'family'")
		case m.GetHistogramOptions() == nil:
			v.addf(path, "metric control must specify 'histogram_options'")
		case len(m.GetHistogramOptions().Buckets) == 0:
			v.addf(path, "histogram options must specify non-empty 'buckets'")
		}
	}
}

func (v *validation) warmup() {
	for i, w := range v.cfg.ModelWarmup {
		path := fmt.Sprintf("model_warmup[%d]", i)
		if int64(w.BatchSize) > max(1, int64(v.cfg.MaxBatchSize)) {
			// Source: the text that the original's backends give when the sample runs.
			v.addf(path+".batch_size", "failed to run warmup sample '%s': batch size %d for '%s', max allowed is %d", w.Name, w.BatchSize,
				v.cfg.Name, v.cfg.MaxBatchSize)
		}
		for name, in := range w.Inputs {
			if in.DataType == modelconfig.DataType_TYPE_INVALID {
				v.addf(path, "model_warmup '%s' must specify 'data_type' of input '%s' for %s", w.Name, name, v.cfg.Name)
			}
			if f := in.GetInputDataFile(); f != "" && (!SafePath(f) || strings.HasSuffix(f, "/")) {
				v.addf(path, "warm-up file %q of input '%s' in model '%s' is outside model directory", f, name, v.cfg.Name)
			}
		}
	}
}
