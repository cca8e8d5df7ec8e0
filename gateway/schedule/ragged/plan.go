package ragged

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// Plan is the part of a model config that makes its batches more than rows. The nil
// Plan is that of a model with rows alone.
type Plan struct {
	layouts map[string]infer.Layout // inputs that are not ByRow
	inputs  []computed
	outputs map[string]scattered
}

// computed is one batch_input.
type computed struct {
	kind     modelconfig.BatchInput_Kind
	targets  []string
	datatype infer.Datatype // FP32 or INT32
	source   string
}

// scattered is one output of a batch_output.
type scattered struct {
	source string
	dims   []int64 // the batch dimension first where the model has one; -1: the source's
}

// FromConfig makes the plan of a validated config; nil: all its batches are rows.
func FromConfig(cfg *modelconfig.ModelConfig) *Plan {
	p := &Plan{layouts: map[string]infer.Layout{}, outputs: map[string]scattered{}}
	for _, in := range cfg.GetInput() {
		switch {
		case in.GetIsShapeTensor():
			p.layouts[in.GetName()] = infer.Shared
		case in.GetAllowRaggedBatch():
			p.layouts[in.GetName()] = infer.Ragged
		}
	}
	for _, b := range cfg.GetBatchInput() {
		p.inputs = append(p.inputs, computed{kind: b.GetKind(), targets: b.GetTargetName(), datatype: infer.Datatype(b.GetDataType()),
			source: b.GetSourceInput()[0]})
	}
	for _, b := range cfg.GetBatchOutput() {
		for _, name := range b.GetTargetName() {
			p.outputs[name] = scattered{source: b.GetSourceInput()[0], dims: outputDims(cfg, name)}
		}
	}
	if len(p.layouts) == 0 && len(p.inputs) == 0 && len(p.outputs) == 0 {
		return nil
	}
	return p
}

// outputDims is an output's shape as the backend sees it.
func outputDims(cfg *modelconfig.ModelConfig, name string) []int64 {
	var dims []int64
	if cfg.GetMaxBatchSize() > 0 {
		dims = append(dims, -1)
	}
	for _, out := range cfg.GetOutput() {
		if out.GetName() != name {
			continue
		}
		if r := out.GetReshape(); r != nil {
			return append(dims, r.GetShape()...)
		}
		return append(dims, out.GetDims()...)
	}
	return dims
}

// Layout is how the requests' own tensors of an input lie in a batch.
func (p *Plan) Layout(input string) infer.Layout {
	if p == nil {
		return infer.ByRow
	}
	return p.layouts[input]
}

// Scatters says that the config has outputs that are cut by an input's shapes.
func (p *Plan) Scatters() bool { return p != nil && len(p.outputs) > 0 }

// find is a request's tensor; nil: it has none of that name.
func find(req *infer.Request, name string) *infer.Tensor {
	for i := range req.Inputs {
		if req.Inputs[i].Name == name {
			return &req.Inputs[i]
		}
	}
	return nil
}
