package openvino

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/openvino/ov"
)

var datatypes = map[ov.Type]infer.Datatype{
	ov.Boolean: infer.Bool, ov.U8: infer.Uint8, ov.U16: infer.Uint16, ov.U32: infer.Uint32, ov.U64: infer.Uint64,
	ov.I8: infer.Int8, ov.I16: infer.Int16, ov.I32: infer.Int32, ov.I64: infer.Int64,
	ov.F16: infer.FP16, ov.F32: infer.FP32, ov.F64: infer.FP64, ov.BF16: infer.BF16,
}

// describe is what ports are in a description. An error is that one can't be served.
func describe(ports []ov.Port) ([]backend.TensorInfo, error) {
	all := make([]backend.TensorInfo, len(ports))
	for i, p := range ports {
		if err := servable(p); err != nil {
			return nil, err
		}
		t := &all[i]
		t.Name, t.Datatype = p.Name, datatypes[p.Type]
		t.Shape = make([]int64, len(p.Shape))
		for k, r := range p.Shape {
			if t.Shape[k] = -1; r.Fixed() {
				t.Shape[k] = r.Min
			}
		}
	}
	return all, nil
}

func servable(p ov.Port) error {
	switch {
	case p.Name == "":
		return fmt.Errorf("one of its inputs or outputs has no name")
	case p.Type == ov.String:
		return fmt.Errorf("tensor '%s' has strings, which OpenVINO's models can't have here", p.Name)
	case datatypes[p.Type] == infer.Invalid:
		return fmt.Errorf("tensor '%s' has a datatype that the protocol has not (number %d of OpenVINO's)", p.Name, p.Type)
	case p.Shape == nil:
		return fmt.Errorf("tensor '%s' may have any number of dimensions, which can't be served", p.Name)
	}
	return nil
}

func find(ports []ov.Port, name string) int {
	return slices.IndexFunc(ports, func(p ov.Port) bool { return p.Name == name })
}

// fit checks a config against the file, and reshapes the model's inputs as the config wants them.
func fit(spec backend.Spec, m *ov.Model, set *settings) error {
	for _, p := range slices.Concat(m.Inputs, m.Outputs) {
		if err := servable(p); err != nil {
			return unable(spec, infer.Unsupported, err)
		}
	}
	cfg := spec.Config
	if got, want := len(cfg.GetInput())+controls(cfg), len(m.Inputs); got != want {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects %d inputs, model provides %d", spec.Name, got, want)
	}
	for _, in := range cfg.GetInput() {
		at := find(m.Inputs, in.GetName())
		if at < 0 {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s', allowed inputs are: %s", in.GetName(), names(m.Inputs))
		}
		if err := sameType(spec.Name, "input", &m.Inputs[at], in.GetDataType()); err != nil {
			return err
		}
	}
	if err := reshape(spec, m, set.reshape); err != nil {
		return err
	}
	for _, in := range cfg.GetInput() {
		if err := sameShape(cfg, &m.Inputs[find(m.Inputs, in.GetName())], dims(in)); err != nil {
			return err
		}
	}
	for _, out := range cfg.GetOutput() {
		at := find(m.Outputs, out.GetName())
		if at < 0 {
			return infer.Errorf(infer.InvalidArg, "unexpected inference output '%s', allowed outputs are: %s", out.GetName(), names(m.Outputs))
		}
		if err := sameType(spec.Name, "output", &m.Outputs[at], out.GetDataType()); err != nil {
			return err
		}
		if err := sameShape(cfg, &m.Outputs[at], dims(out)); err != nil {
			return err
		}
	}
	return nil
}

// controls are the inputs that the sequence batcher gives.
func controls(cfg *modelconfig.ModelConfig) int {
	s := cfg.GetSequenceBatching()
	return len(s.GetControlInput()) + len(s.GetState())
}

func names(ports []ov.Port) string {
	all := make([]string, len(ports))
	for i := range ports {
		all[i] = ports[i].Name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func sameType(model, what string, p *ov.Port, d modelconfig.DataType) error {
	if got := modelconfig.DataType(datatypes[p.Type]); got != d {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s",
			model, d, what, p.Name, got)
	}
	return nil
}

type tensor interface {
	GetReshape() *modelconfig.ModelTensorReshape
	GetDims() []int64
}

// dims are a tensor's dims as the backend sees them.
func dims(t tensor) []int64 {
	if r := t.GetReshape(); r != nil {
		return r.GetShape()
	}
	return t.GetDims()
}

// reshape makes dimension 0 of each input a batch's, where it is another's, and with all the rest the config's.
func reshape(spec backend.Spec, m *ov.Model, all bool) error {
	cfg, shapes := spec.Config, map[int][]ov.Range{}
	batch := int64(cfg.GetMaxBatchSize())
	for i := range m.Inputs {
		p := &m.Inputs[i]
		shape := slices.Clone(p.Shape)
		if at := slices.IndexFunc(cfg.GetInput(), func(in *modelconfig.ModelInput) bool { return in.GetName() == p.Name }); all && at >= 0 {
			shape = shape[:0]
			if batch > 0 {
				shape = append(shape, ov.Range{Min: 1, Max: batch})
			}
			for _, d := range dims(cfg.GetInput()[at]) {
				if d < 0 {
					shape = append(shape, ov.Any)
				} else {
					shape = append(shape, ov.Range{Min: d, Max: d})
				}
			}
		} else if batch > 0 && len(shape) > 0 {
			shape[0] = ov.Range{Min: 1, Max: batch}
		}
		if !slices.Equal(shape, p.Shape) {
			shapes[i] = shape
		}
	}
	if err := m.Reshape(shapes); err != nil {
		return unable(spec, infer.InvalidArg, fmt.Errorf("its inputs can't have the shapes of the config (max_batch_size %d): %w", batch, cleaner(spec)(err)))
	}
	return nil
}

// sameShape compares a config's dims with the model's. Where the model's are any, the config may fix them.
func sameShape(cfg *modelconfig.ModelConfig, p *ov.Port, dims []int64) error {
	full, how := dims, "shape "
	if cfg.GetMaxBatchSize() > 0 {
		if len(p.Shape) == 0 || p.Shape[0].Fixed() && cfg.GetMaxBatchSize() > 1 {
			return infer.Errorf(infer.InvalidArg, "model '%s', tensor '%s': for the model to support batching the shape should have at"+
				" least 1 dimension and the first dimension must be -1; but shape expected by the model is %s", cfg.GetName(), p.Name, rangesText(p.Shape))
		}
		full = append([]int64{-1}, dims...)
		how = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
	}
	if len(p.Shape) == 0 && len(dims) == 1 && dims[0] == 1 {
		return nil // a scalar
	}
	fits := len(full) == len(p.Shape)
	for i := 0; fits && i < len(full); i++ {
		r := p.Shape[i]
		fits = i == 0 && len(full) > len(dims) || full[i] < 0 && !r.Fixed() || full[i] >= 0 && r.Has(full[i])
	}
	if !fits {
		return infer.Errorf(infer.InvalidArg, "model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model"+
			" configuration specifies %d dimensions (%s%s)", cfg.GetName(), p.Name, len(p.Shape), rangesText(p.Shape), len(full), how, shapeText(full))
	}
	return nil
}

// rangesText is a shape in which dimensions have bounds: [-1,16,1..8].
func rangesText(shape []ov.Range) string {
	all := make([]string, len(shape))
	for i, r := range shape {
		switch {
		case r.Fixed():
			all[i] = strconv.FormatInt(r.Min, 10)
		case r.Max < 0:
			all[i] = "-1"
		default:
			all[i] = fmt.Sprintf("%d..%d", r.Min, r.Max)
		}
	}
	return "[" + strings.Join(all, ",") + "]"
}

func shapeText(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ",") }
