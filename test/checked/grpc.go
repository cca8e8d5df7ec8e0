package checked

import (
	"bytes"
	"strconv"

	"github.com/sluice-serve/sluice/proto/inference"
)

// Message is a request with one INT32 input, in rows of equal length; the latest version
// answers.
func Message(model, input string, rows int, v []int32) *inference.ModelInferRequest {
	tensor := &inference.ModelInferRequest_InferInputTensor{Name: input, Datatype: "INT32",
		Shape: []int64{int64(rows), int64(len(v) / rows)}}
	return &inference.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{Raw(v)},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{tensor}}
}

// CheckEcho wants the request's ID and tensor back.
func CheckEcho(got *inference.ModelInferResponse, v []int32, id string) error {
	if got.GetId() != id || len(got.GetRawOutputContents()) != 1 || !bytes.Equal(got.RawOutputContents[0], Raw(v)) {
		return Wrongf("answer %q to %q with other bytes than were sent", got.GetId(), id)
	}
	return nil
}

// Output is the model version that answered and the content of the one output.
func Output(got *inference.ModelInferResponse) (version int, out []int32, err error) {
	version, err = strconv.Atoi(got.GetModelVersion())
	if err != nil || len(got.GetRawOutputContents()) != 1 {
		return 0, nil, Wrongf("answered %.300s", got)
	}
	return version, Numbers(got.RawOutputContents[0]), nil
}

// Message is the step as a gRPC request.
func (s Step) Message(model string) *inference.ModelInferRequest {
	m := Message(model, "VALUE", 1, []int32{s.Value})
	flag := func(b bool) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: b}}
	}
	m.Parameters = map[string]*inference.InferParameter{"sequence_start": flag(s.Start), "sequence_end": flag(s.End)}
	switch id := s.ID.(type) {
	case string:
		choice := &inference.InferParameter_StringParam{StringParam: id}
		m.Parameters["sequence_id"] = &inference.InferParameter{ParameterChoice: choice}
	case uint64:
		choice := &inference.InferParameter_Uint64Param{Uint64Param: id}
		m.Parameters["sequence_id"] = &inference.InferParameter{ParameterChoice: choice}
	}
	return m
}
