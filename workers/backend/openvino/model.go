package openvino

import (
	"context"
	"fmt"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/openvino/ov"
)

// model is one loaded version.
type model struct {
	backend  *openVINO
	spec     backend.Spec
	compiled *ov.Compiled
	plan     *plan
	failure  func(error) error
}

// plan is how batches become runs; instances share it.
type plan struct {
	inputs, outputs []port
}

// port is an input or output as runs need it.
type port struct {
	name     string
	typ      ov.Type
	datatype infer.Datatype
	scalar   bool
	// shape is the output's shape, -1 in place of the batch dimension; nil: it is not known before the run.
	shape []int64
}

func newPlan(cfg *modelconfig.ModelConfig, m *ov.Model) (*plan, error) {
	p := &plan{inputs: make([]port, len(m.Inputs)), outputs: make([]port, len(m.Outputs))}
	for i := range m.Inputs {
		p.inputs[i] = newPort(&m.Inputs[i], cfg)
	}
	for i := range m.Outputs {
		p.outputs[i] = newPort(&m.Outputs[i], cfg)
	}
	seen := map[string]bool{}
	for _, o := range p.outputs {
		if seen[o.name] {
			return nil, fmt.Errorf("two of its outputs are named '%s'", o.name)
		}
		seen[o.name] = true
	}
	return p, nil
}

func newPort(m *ov.Port, cfg *modelconfig.ModelConfig) port {
	p := port{name: m.Name, typ: m.Type, datatype: datatypes[m.Type], scalar: len(m.Shape) == 0, shape: make([]int64, len(m.Shape))}
	for k, r := range m.Shape {
		switch {
		case r.Fixed():
			p.shape[k] = r.Min
		case k == 0 && cfg.GetMaxBatchSize() > 0:
			p.shape[k] = -1
		default:
			p.shape = nil
			return p
		}
	}
	return p
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	if spec.GPU {
		return nil, infer.Errorf(infer.Unsupported, "models of backend %s are computed on the CPU: instance '%s' can't be of KIND_GPU", m.backend.kind.name, spec.Name)
	}
	i := &instance{model: m, order: make([]int, len(m.plan.inputs))}
	for k := range i.order {
		i.order[k] = k
	}
	i.running.Call = i
	if err := i.renew(); err != nil {
		return nil, unable(m.spec, infer.Internal, m.failure(err))
	}
	m.backend.watch.Add(&i.running)
	return i, nil
}

// Close fits backend.Model.
func (m *model) Close() error {
	m.compiled.Close()
	return nil
}
