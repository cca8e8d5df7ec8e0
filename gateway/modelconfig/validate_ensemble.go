package modelconfig

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// flow is the data flow of an ensemble's config by the names of its tensors.
type flow struct {
	written map[string]int   // tensor → the step that writes it
	read    map[string][]int // tensor → the steps that read it
	ready   map[string]bool  // tensors that can come to be
}

// dataFlow checks what the steps read and write, as far as the config alone tells.
// Source: ValidateEnsembleSchedulingConfig and BuildEnsembleGraph of the original's
// model_config_utils.cc; the texts are theirs.
func (v *validation) dataFlow() {
	cfg := v.cfg
	steps := cfg.GetEnsembleScheduling().GetStep()
	before := len(v.Faults)
	f := v.flow(steps)
	if len(v.Faults) > before {
		return
	}
	for i, in := range cfg.Input {
		_, written := f.written[in.Name]
		switch {
		case !written && len(f.read[in.Name]) == 0:
			v.addf(fmt.Sprintf("input[%d]", i), "ensemble input '%s' for ensemble %s' is not used", in.Name, cfg.Name)
		case written:
			v.addf(fmt.Sprintf("ensemble_scheduling.step[%d].output_map", f.written[in.Name]),
				"ensemble tensor '%s' is an input of ensemble '%s' and written by step %d", in.Name, cfg.Name, f.written[in.Name])
		}
		f.ready[in.Name] = true
	}
	f.settle(steps)
	for i, out := range cfg.Output {
		v.flowOutput(f, steps, fmt.Sprintf("output[%d]", i), out.Name)
	}
	if len(v.Faults) == before {
		v.unusedTensors(f, steps)
	}
}

// flow ties the steps by the names of their tensors.
func (v *validation) flow(steps []*modelconfig.ModelEnsembling_Step) *flow {
	f := &flow{written: map[string]int{}, read: map[string][]int{}, ready: map[string]bool{}}
	for i, s := range steps {
		for _, name := range slices.Sorted(maps.Keys(s.OutputMap)) {
			tensor := s.OutputMap[name]
			if _, twice := f.written[tensor]; twice {
				v.addf(fmt.Sprintf("ensemble_scheduling.step[%d].output_map", i),
					"ensemble tensor '%s' can appear in an output map only once for ensemble '%s' step %d", tensor, v.cfg.Name, i)
			}
			f.written[tensor] = i
		}
		for _, tensor := range s.InputMap {
			if !slices.Contains(f.read[tensor], i) {
				f.read[tensor] = append(f.read[tensor], i)
			}
		}
	}
	return f
}

// settle finds every tensor that can come to be, beginning with the inputs.
func (f *flow) settle(steps []*modelconfig.ModelEnsembling_Step) {
	for range steps {
		for _, s := range steps {
			ready := true
			for _, tensor := range s.InputMap {
				ready = ready && f.ready[tensor]
			}
			for _, tensor := range s.OutputMap {
				f.ready[tensor] = f.ready[tensor] || ready
			}
		}
	}
}

func (v *validation) flowOutput(f *flow, steps []*modelconfig.ModelEnsembling_Step, path, name string) {
	_, written := f.written[name]
	if !written && len(f.read[name]) == 0 {
		v.addf(path, "ensemble output '%s' for ensemble %s' is not used", name, v.cfg.Name)
		return
	}
	if f.ready[name] {
		return
	}
	text := fmt.Sprintf("output '%s' for ensemble '%s' is not written", name, v.cfg.Name)
	last, seen := name, map[string]bool{name: true}
	for {
		i, ok := f.written[last]
		if !ok {
			break
		}
		next := ""
		for _, in := range slices.Sorted(maps.Keys(steps[i].InputMap)) {
			if tensor := steps[i].InputMap[in]; !f.ready[tensor] && !seen[tensor] {
				next = tensor
				break
			}
		}
		if next == "" {
			break
		}
		last, seen[next] = next, true
	}
	if last != name {
		text += fmt.Sprintf(": at least one of its depending tensors, '%s', is not connected", last)
	}
	v.addf(path, "%s", text)
}

// unusedTensors finds what is made for nothing, and what only runs in a circle.
func (v *validation) unusedTensors(f *flow, steps []*modelconfig.ModelEnsembling_Step) {
	outputs := map[string]bool{}
	for _, out := range v.cfg.Output {
		outputs[out.Name] = true
	}
	reported := map[string]bool{}
	for i, s := range steps {
		for field, tensors := range map[string]map[string]string{"input_map": s.InputMap, "output_map": s.OutputMap} {
			for _, name := range slices.Sorted(maps.Keys(tensors)) {
				tensor := tensors[name]
				if outputs[tensor] || reported[tensor] || f.ready[tensor] && len(f.read[tensor]) > 0 {
					continue
				}
				reported[tensor] = true
				v.addf(fmt.Sprintf("ensemble_scheduling.step[%d].%s", i, field), "ensemble tensor '%s' is unused in ensemble '%s'", tensor, v.cfg.Name)
			}
		}
	}
}
