package repository

import (
	"fmt"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// tensor is an input or output of a model config, ready for the request path.
// Source: messages ModelInput and ModelOutput.
type tensor struct {
	name     string
	datatype infer.Datatype
	dims     []int64 // the client's view, without batch; -1: any
	reshape  []int64 // the backend's view; meaningful where reshaped is set
	reshaped bool
	optional bool
	shape    bool // a shape tensor: no batch dimension of its own
	unlinear bool // its bytes are the backend's business
}

func newTensor(name string, dt configpb.DataType, dims []int64, reshape *configpb.ModelTensorReshape) tensor {
	return tensor{name: name, datatype: infer.Datatype(dt), dims: dims, reshape: reshape.GetShape(), reshaped: reshape != nil}
}

// apply turns a shape that matches from into the shape of to: the values at from's
// variable dimensions go to to's, in order. lead dimensions in front stay. The result
// is written over shape where it is no longer; what lies behind shape may be another's.
func apply(shape []int64, lead int, from, to []int64) []int64 {
	if len(shape) != lead+len(from) {
		return shape // not what the config says; it is not ours to repair
	}
	var kept [infer.MaxRank]int64
	n := 0
	for i, d := range from {
		if d == -1 && n < len(kept) {
			kept[n] = shape[lead+i]
			n++
		}
	}
	out := shape[:lead]
	if len(shape) < lead+len(to) {
		out = append(make([]int64, 0, lead+len(to)), out...)
	}
	n = 0
	for _, d := range to {
		if d == -1 && n < len(kept) {
			d = kept[n]
			n++
		}
		out = append(out, d)
	}
	return out
}

// Present turns a response's shapes from the backend's view into the client's.
func (m *Model) Present(resp *infer.Response) {
	lead := 0
	if m.maxBatch > 0 {
		lead = 1
	}
	for i := range resp.Outputs {
		out := &resp.Outputs[i]
		if at, ok := m.outputAt[out.Name]; ok && m.outputs[at].reshaped {
			out.Shape = apply(out.Shape, lead, m.outputs[at].reshape, m.outputs[at].dims)
		}
	}
}

// dimsText is a shape as the original writes it, "[-1,4]".
func dimsText(dims []int64) string { return strings.ReplaceAll(fmt.Sprint(dims), " ", ",") }

// rawInput is the name that raw requests' messages give their input.
const rawInput = "raw_input"

// raw is the one input of the model, shaped so that size bytes fill it. For BYTES the
// size is that of the one element; its 4-byte length is not counted.
// Source: the binary tensor data extension, raw binary requests.
func (m *Model) raw(size int64) (infer.Tensor, error) {
	var nobody infer.Request
	fail := func(format string, args ...any) (infer.Tensor, error) {
		return infer.Tensor{}, infer.Errorf(infer.InvalidArg, nobody.Prefix()+format, args...)
	}
	if len(m.inputs) != 1 {
		return fail("Raw request must only have 1 input (found 1) to be deduced but got %d inputs in '%s' model configuration", len(m.inputs), m.Name)
	}
	in := &m.inputs[0]
	var shape []int64
	if m.maxBatch > 0 {
		shape = append(shape, 1)
	}
	lead, axis, rest := len(shape), -1, int64(1)
	for i, d := range in.dims {
		switch {
		case d != -1:
			rest *= d // Validate bounded the product of the model's dims
		case axis >= 0:
			return fail("The shape of the raw input '%s' can not be deduced because there are more than one variable-sized dimension", in.name)
		default:
			axis = i
		}
	}
	shape = append(shape, in.dims...)
	if in.datatype == infer.Bytes {
		if axis >= 0 || rest != 1 {
			return fail("For BYTE datatype raw input '%s', the model must have input shape [1]", in.name)
		}
		return infer.Tensor{Name: in.name, Datatype: in.datatype, Shape: shape}, nil
	}
	if axis >= 0 {
		if per := rest * in.datatype.Size(); per > 0 {
			shape[lead+axis] = size / per
		}
	}
	if want, err := infer.ByteSize(in.datatype, shape); err != nil || want != size {
		return fail("input byte size mismatch for input '%s' for model '%s'. Expected %d, got %d", rawInput, m.Name, want, size)
	}
	return infer.Tensor{Name: in.name, Datatype: in.datatype, Shape: shape}, nil
}
