package ensemble

import (
	"maps"
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// FromConfig is the ensemble that a completed model config describes. Ports are in the
// order of their names, since the config's maps have none.
func FromConfig(cfg *modelconfig.ModelConfig, model schedule.Model) Config {
	e := cfg.GetEnsembleScheduling()
	c := Config{Model: model, MaxInflight: int(e.GetMaxInflightRequests())}
	for _, in := range cfg.GetInput() {
		c.Inputs = append(c.Inputs, in.GetName())
	}
	for _, out := range cfg.GetOutput() {
		dims := out.GetDims()
		if out.GetReshape() != nil {
			dims = out.GetReshape().GetShape()
		}
		c.Outputs = append(c.Outputs, Output{Name: out.GetName(), Dims: dims})
	}
	for _, s := range e.GetStep() {
		c.Steps = append(c.Steps, Step{
			Model:  schedule.StepModel{Name: s.GetModelName(), Namespace: s.GetModelNamespace(), Version: max(s.GetModelVersion(), -1)},
			Inputs: ports(s.GetInputMap()), Outputs: ports(s.GetOutputMap()),
		})
	}
	return c
}

func ports(m map[string]string) []Port {
	var all []Port
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, Port{name, m[name]})
	}
	return all
}
