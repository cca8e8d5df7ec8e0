//go:build onnxruntime && cgo

package onnxruntime

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

var datatypes = map[ort.Type]infer.Datatype{
	ort.Bool: infer.Bool, ort.Uint8: infer.Uint8, ort.Uint16: infer.Uint16, ort.Uint32: infer.Uint32,
	ort.Uint64: infer.Uint64, ort.Int8: infer.Int8, ort.Int16: infer.Int16, ort.Int32: infer.Int32,
	ort.Int64: infer.Int64, ort.Float16: infer.FP16, ort.Float: infer.FP32, ort.Double: infer.FP64,
	ort.String: infer.Bytes, ort.BFloat16: infer.BF16,
}

// datatypeOf is Invalid for types that the protocol does not have.
func datatypeOf(t ort.Type) infer.Datatype { return datatypes[t] }

// configName is a datatype's name in a model configuration: TYPE_FP32, TYPE_STRING.
func configName(d infer.Datatype) string { return modelconfig.DataType(d).String() }

var onnxTypes = [...]string{"ONNX_TYPE_UNKNOWN", "ONNX_TYPE_TENSOR", "ONNX_TYPE_SEQUENCE", "ONNX_TYPE_MAP",
	"ONNX_TYPE_OPAQUE", "ONNX_TYPE_SPARSETENSOR", "ONNX_TYPE_OPTIONAL"}

// checkTypes refuses models with inputs or outputs that are no tensors of a datatype
// that the protocol has. The texts are the original's.
func checkTypes(name string, s *ort.Session) error {
	for _, t := range slices.Concat(s.Inputs, s.Outputs) {
		if t.ONNXType != 1 {
			typ := onnxTypes[0]
			if t.ONNXType > 0 && t.ONNXType < len(onnxTypes) {
				typ = onnxTypes[t.ONNXType]
			}
			return infer.Errorf(infer.Unsupported, "Unsupported ONNX Type '%s' for I/O '%s', expected 'ONNX_TYPE_TENSOR'.", typ, t.Name)
		}
		if datatypeOf(t.Type) == infer.Invalid {
			return infer.Errorf(infer.Unsupported, "unable to load model '%s', unsupported datatype %s for I/O '%s'", name, t.Type, t.Name)
		}
	}
	return nil
}

// validate checks what the configuration declares against the model file. The texts
// are the original's (onnxruntime_backend, ValidateInputs and ValidateOutputs).
func validate(spec backend.Spec, s *ort.Session) error {
	if err := checkTypes(spec.Name, s); err != nil {
		return err
	}
	v := validator{spec.Name, spec.Config, int(spec.Config.GetMaxBatchSize())}
	if err := v.sequence(s); err != nil {
		return err
	}
	if err := v.inputCount(s); err != nil {
		return err
	}
	for _, in := range v.cfg.GetInput() {
		t := find(s.Inputs, in.GetName())
		if t == nil {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s', allowed inputs are: %s", in.GetName(), names(s.Inputs))
		}
		if err := v.datatype("input", t, in.GetDataType()); err != nil {
			return err
		}
		if err := v.input(t, in); err != nil {
			return err
		}
	}
	for _, in := range v.cfg.GetBatchInput() {
		if err := v.batchInput(s, in); err != nil {
			return err
		}
	}
	for _, out := range v.cfg.GetOutput() {
		t := find(s.Outputs, out.GetName())
		if t == nil {
			return infer.Errorf(infer.InvalidArg, "unexpected inference output '%s', allowed outputs are: %s", out.GetName(), names(s.Outputs))
		}
		if err := v.datatype("output", t, out.GetDataType()); err != nil {
			return err
		}
		if batchOutput(v.cfg, out.GetName()) {
			continue
		}
		if err := v.shape(t, outputDims(out), true); err != nil {
			return err
		}
	}
	return nil
}

type validator struct {
	name  string
	cfg   *modelconfig.ModelConfig
	batch int
}

func find(infos []ort.TensorInfo, name string) *ort.TensorInfo {
	i := slices.IndexFunc(infos, func(t ort.TensorInfo) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &infos[i]
}

func names(infos []ort.TensorInfo) string {
	all := make([]string, len(infos))
	for i := range infos {
		all[i] = infos[i].Name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// inputCount compares how many inputs a run will get with how many it needs. Inputs
// with an initializer behind them may be there or not.
func (v validator) inputCount(s *ort.Session) error {
	var given []string
	for _, in := range v.cfg.GetInput() {
		given = append(given, in.GetName())
	}
	for _, in := range v.cfg.GetBatchInput() {
		given = append(given, in.GetTargetName()...)
	}
	seq := v.cfg.GetSequenceBatching()
	for _, in := range seq.GetControlInput() {
		given = append(given, in.GetName())
	}
	for _, st := range seq.GetState() {
		given = append(given, st.GetInputName())
	}
	expects, provides := 0, 0
	for _, name := range given {
		if t := find(s.Inputs, name); t == nil || !t.Optional {
			expects++
		}
	}
	for _, t := range s.Inputs {
		if !t.Optional {
			provides++
		}
	}
	if expects != provides {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects %d inputs, model provides %d",
			v.name, expects, provides)
	}
	return nil
}

func (v validator) datatype(what string, t *ort.TensorInfo, d modelconfig.DataType) error {
	if got := datatypeOf(t.Type); modelconfig.DataType(got) != d {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s",
			v.name, d, what, t.Name, configName(got))
	}
	return nil
}

func (v validator) input(t *ort.TensorInfo, in *modelconfig.ModelInput) error {
	if !in.GetAllowRaggedBatch() {
		return v.shape(t, inputDims(in), false)
	}
	if in.GetOptional() {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects model provides input with shape [-1]"+
			" for ragged input '%s', which is not supported for optional input", v.name, t.Name)
	}
	if t.Rank >= 0 && !slices.Equal(t.Shape, []int64{-1}) {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', configuration expects model provides input with shape [-1]"+
			"  for ragged input '%s', model provides %s", v.name, t.Name, shapeText(t.Shape))
	}
	return nil
}

// batchInput checks the inputs that the gateway computes. The original finds what is
// wrong with them when the first batch runs.
func (v validator) batchInput(s *ort.Session, in *modelconfig.BatchInput) error {
	for _, name := range in.GetTargetName() {
		t := find(s.Inputs, name)
		if t == nil {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s', allowed inputs are: %s", name, names(s.Inputs))
		}
		if err := v.datatype("input", t, in.GetDataType()); err != nil {
			return err
		}
		rank := 1
		if in.GetKind() == modelconfig.BatchInput_BATCH_ITEM_SHAPE {
			rank = 2
		}
		if t.Rank >= 0 && t.Rank != rank {
			return infer.Errorf(infer.InvalidArg, "unable to load model '%s', batch input '%s' of kind %s has %d dimensions, model provides %s",
				v.name, name, in.GetKind(), rank, shapeText(t.Shape))
		}
	}
	return nil
}

// batchOutput says that the gateway cuts an output by the shapes of an input.
func batchOutput(cfg *modelconfig.ModelConfig, name string) bool {
	return slices.ContainsFunc(cfg.GetBatchOutput(), func(b *modelconfig.BatchOutput) bool {
		return slices.Contains(b.GetTargetName(), name)
	})
}

func inputDims(in *modelconfig.ModelInput) []int64 {
	if r := in.GetReshape(); r != nil {
		return r.GetShape()
	}
	return in.GetDims()
}

func outputDims(out *modelconfig.ModelOutput) []int64 {
	if r := out.GetReshape(); r != nil {
		return r.GetShape()
	}
	return out.GetDims()
}

// shape compares the configuration's dims with the model's. exact also refuses a fixed
// dimension where the model's is open.
func (v validator) shape(t *ort.TensorInfo, dims []int64, exact bool) error {
	if t.Rank < 0 {
		return nil // the file does not tell
	}
	if t.Rank == 0 {
		if slices.ContainsFunc(dims, func(d int64) bool { return d != 1 }) {
			return infer.Errorf(infer.InvalidArg, "unable to load model '%s', scalar tensor '%s', should only provide 1 in the model"+
				" configuration when the model doesn't support batching. Model configuration provided: %s.", v.name, t.Name, shapeText(dims))
		}
		return nil
	}
	full, how := dims, "shape "
	if v.batch > 0 {
		if t.Shape[0] != -1 {
			return infer.Errorf(infer.InvalidArg, "model '%s', tensor '%s': for the model to support batching the shape should have at"+
				" least 1 dimension and the first dimension must be -1; but shape expected by the model is %s", v.name, t.Name, shapeText(t.Shape))
		}
		full = append([]int64{-1}, dims...)
		how = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
	}
	fits := len(full) == len(t.Shape)
	for i := 0; fits && i < len(full); i++ {
		fits = t.Shape[i] == full[i] || t.Shape[i] == -1 && !exact
	}
	if !fits {
		return infer.Errorf(infer.InvalidArg, "model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model"+
			" configuration specifies %d dimensions (%s%s)", v.name, t.Name, len(t.Shape), shapeText(t.Shape), len(full), how, shapeText(full))
	}
	return nil
}

// shapeText is a shape as the original writes it: [-1,16].
func shapeText(shape []int64) string {
	b := []byte{'['}
	for i, d := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return string(append(b, ']'))
}
