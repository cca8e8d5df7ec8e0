//go:build onnxruntime && cgo

package onnxruntime

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// sequence checks controls and states against the model file. Texts about controls are
// the original's (ValidateBooleanSequenceControl); about states it says nothing itself.
func (v validator) sequence(s *ort.Session) error {
	seq := v.cfg.GetSequenceBatching()
	for _, in := range seq.GetControlInput() {
		for _, c := range in.GetControl() {
			if err := v.control(s, in.GetName(), c); err != nil {
				return err
			}
		}
	}
	for _, st := range seq.GetState() {
		for _, one := range []struct {
			what, name string
			infos      []ort.TensorInfo
		}{{"input", st.GetInputName(), s.Inputs}, {"output", st.GetOutputName(), s.Outputs}} {
			t := find(one.infos, one.name)
			if t == nil {
				return infer.Errorf(infer.InvalidArg, "unable to load model '%s', state %s '%s' is not in the model, which has: %s", v.name,
					one.what, one.name, names(one.infos))
			}
			if err := v.datatype("state "+one.what, t, st.GetDataType()); err != nil {
				return err
			}
			if err := v.shape(t, st.GetDims(), false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v validator) control(s *ort.Session, name string, c *modelconfig.ModelSequenceBatching_Control) error {
	t := find(s.Inputs, name)
	if t == nil {
		return infer.Errorf(infer.Internal, "configuration specified sequence control '%s', but model does not provide that input", name)
	}
	dims := t.Shape
	if v.batch > 0 && len(dims) > 0 {
		dims = dims[1:]
	}
	if t.Rank >= 0 && (len(dims) != 1 || dims[0] != 1) {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', sequence control '%s' in model has dims %s but dims [1] is expected",
			v.name, name, shapeText(dims))
	}
	want := c.GetDataType()
	switch {
	case len(c.GetInt32FalseTrue()) > 0:
		want = modelconfig.DataType_TYPE_INT32
	case len(c.GetFp32FalseTrue()) > 0:
		want = modelconfig.DataType_TYPE_FP32
	case len(c.GetBoolFalseTrue()) > 0:
		want = modelconfig.DataType_TYPE_BOOL
	}
	if got := datatypeOf(t.Type); modelconfig.DataType(got) != want {
		return infer.Errorf(infer.InvalidArg, "unable to load model '%s', sequence control '%s', the model expects data-type %s but the model"+
			" configuration specifies data-type %s", v.name, name, configName(got), want)
	}
	return nil
}
