package workers

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// scattered are a model's outputs that the gateway cuts by the shapes of an input, so
// that they need not begin with the batch's rows.
// Source: message BatchOutput, proto/modelconfig/model_config.proto.
type scattered map[string]scatter

type scatter struct {
	source string
	dims   []int64 // the batch dimension first where the model has one; -1: the source's
}

func scatteredOf(cfg *modelconfig.ModelConfig) scattered {
	if len(cfg.GetBatchOutput()) == 0 {
		return nil
	}
	all := scattered{}
	for _, b := range cfg.GetBatchOutput() {
		for _, name := range b.GetTargetName() {
			s := scatter{}
			if len(b.GetSourceInput()) > 0 {
				s.source = b.GetSourceInput()[0]
			}
			if cfg.GetMaxBatchSize() > 0 {
				s.dims = append(s.dims, -1)
			}
			for _, out := range cfg.GetOutput() {
				switch r := out.GetReshape(); {
				case out.GetName() != name:
				case r != nil:
					s.dims = append(s.dims, r.GetShape()...)
				default:
					s.dims = append(s.dims, out.GetDims()...)
				}
			}
			all[name] = s
		}
	}
	return all
}

// shape is the output's shape for one request.
func (s *scatter) shape(r *request) []int64 {
	shape := append([]int64{}, s.dims...)
	for _, in := range r.Inputs() {
		if in.Name != s.source {
			continue
		}
		for i, d := range shape {
			if d == -1 && i < len(in.Shape) {
				shape[i] = in.Shape[i]
			}
		}
	}
	return shape
}

// splitScattered cuts an output for request i of the batch.
func (x *execution) splitScattered(o *infer.Tensor, s scatter, i int) (infer.Tensor, error) {
	var first, n int64
	var shape []int64
	for k := 0; k <= i; k++ {
		first += n
		shape = s.shape(&x.requests[k])
		var err error
		if n, err = infer.Elements(shape); err != nil {
			return infer.Tensor{}, infer.Errorf(infer.Internal, "output '%s': %w", o.Name, err)
		}
	}
	return infer.SplitElements(o, first, n, shape)
}

// splitOne cuts the outputs for request i.
func (x *execution) splitOne(outputs []infer.Tensor, i int) (part []infer.Tensor, err error) {
	r := &x.requests[i]
	for k := range outputs {
		if s, ok := x.inst.scattered[outputs[k].Name]; ok {
			var t infer.Tensor
			t, err = x.splitScattered(&outputs[k], s, i)
			part = append(part, t)
		} else {
			part, err = infer.Split(part, outputs[k:k+1], x.batch.Rows, r.first, r.wire.Rows)
		}
		if err != nil {
			return nil, err
		}
	}
	return part, nil
}
