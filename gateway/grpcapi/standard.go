package grpcapi

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// ModelInfer is the way of a request through generated code: what ServiceConfig's
// StandardCodec chooses, and what tests hold the hand-written codec against. The
// transport has read the message before the pipeline is asked.
func (s *Service) ModelInfer(ctx context.Context, m *inference.ModelInferRequest) (
	*inference.ModelInferResponse, error,
) {
	c := newCall()
	defer c.traceSent()
	c.size = int64(proto.Size(m))
	if err := s.wait(ctx, c, func() error { return fromMessage(c, m, s.bodies) }); err != nil {
		return nil, err
	}
	return c.message, nil
}

// fromMessage makes the request of a decoded message; tensors are views on it.
func fromMessage(c *Call, m *inference.ModelInferRequest, bodies Bodies) error {
	req := &c.Request
	req.Model, req.Version, req.ID = m.ModelName, m.ModelVersion, m.Id
	req.Inputs, req.Outputs = c.inputs[:0], c.outputs[:0]
	if len(m.Inputs) > maxInputs {
		return tooMany("inputs", maxInputs)
	}
	if len(m.Outputs) > maxOutputs {
		return tooMany("outputs", maxOutputs)
	}
	if len(m.RawInputContents) > maxInputs {
		return tooMany("raw_input_contents", maxInputs)
	}
	params, err := fromParams(m.Parameters)
	if err != nil {
		return err
	}
	if c.emptyFinal, err = apply(req, params); err != nil {
		return err
	}
	d := &decoder{raws: m.RawInputContents}
	for _, in := range m.Inputs {
		if len(in.Shape) > infer.MaxRank {
			return infer.Errorf(infer.InvalidArg, "shape has more than %d dimensions", infer.MaxRank)
		}
		if params, err = fromParams(in.Parameters); err != nil {
			return err
		}
		use, shared, err := sharedOf(in.Name, params)
		if err != nil {
			return err
		}
		if shared {
			use.Index = len(req.Inputs)
			c.uses = append(c.uses, use)
		}
		data := contents{set: in.Contents != nil, shared: shared}
		if data.set {
			if data.data, err = proto.Marshal(in.Contents); err != nil {
				return err
			}
		}
		d.contents = append(d.contents, data)
		req.Inputs = append(req.Inputs, infer.Tensor{Name: in.Name, Datatype: infer.ParseDatatype(in.Datatype), Shape: in.Shape})
	}
	for _, o := range m.Outputs {
		out := infer.RequestedOutput{Name: o.Name}
		if params, err = fromParams(o.Parameters); err != nil {
			return err
		}
		if err := c.addOutput(out, params); err != nil {
			return err
		}
	}
	return d.bind(c, bodies)
}

// fromParams lists a map's entries in the order of their names.
func fromParams(m map[string]*inference.InferParameter) ([]param, error) {
	if len(m) > maxParams {
		return nil, tooMany("parameters", maxParams)
	}
	var list []param
	for _, name := range slices.Sorted(maps.Keys(m)) {
		p := param{name: name, set: true}
		switch v := m[name].GetParameterChoice().(type) {
		case *inference.InferParameter_BoolParam:
			p.value = infer.Value{Kind: infer.KindBool, Bool: v.BoolParam}
		case *inference.InferParameter_Int64Param:
			p.value = infer.Value{Kind: infer.KindInt64, Int: v.Int64Param}
		case *inference.InferParameter_StringParam:
			p.value = infer.Value{Kind: infer.KindString, Str: v.StringParam}
		case *inference.InferParameter_DoubleParam:
			p.value = infer.Value{Kind: infer.KindDouble, Double: v.DoubleParam}
		case *inference.InferParameter_Uint64Param:
			p.value = infer.Value{Kind: infer.KindUint64, Int: int64(v.Uint64Param)}
		default:
			p.set = false
		}
		list = append(list, p)
	}
	return list, nil
}

// toMessage copies a response and releases its memory.
func toMessage(r *infer.Response) (*inference.ModelInferResponse, error) {
	defer r.Memory.Release()
	if err := checkResponse(r); err != nil {
		return nil, err
	}
	m := &inference.ModelInferResponse{ModelName: r.Model, ModelVersion: r.Version, Id: r.ID}
	for i := range r.Params {
		if m.Parameters == nil {
			m.Parameters = make(map[string]*inference.InferParameter, len(r.Params))
		}
		m.Parameters[r.Params[i].Name] = toParam(&r.Params[i].Value)
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		m.Outputs = append(m.Outputs, &inference.ModelInferResponse_InferOutputTensor{
			Name: o.Name, Datatype: o.Datatype.String(), Shape: slices.Clone(o.Shape)})
		m.RawOutputContents = append(m.RawOutputContents, slices.Clone(o.Data))
	}
	return m, nil
}

func toParam(v *infer.Value) *inference.InferParameter {
	switch v.Kind {
	case infer.KindInt64:
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: v.Int}}
	case infer.KindString:
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: v.Str}}
	case infer.KindDouble:
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: v.Double}}
	case infer.KindUint64:
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: uint64(v.Int)}}
	}
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: v.Bool}}
}
