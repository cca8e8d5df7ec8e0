package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
)

// tensor is the input's data: seeded, so that two runs send the same bytes.
func tensor(shape []int64) []byte {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	source := rand.New(rand.NewSource(1))
	data := make([]byte, 0, 4*n)
	for range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(source.NormFloat64())))
	}
	return data
}

// httpRequest is a whole request in the binary tensor extension, all outputs binary.
func httpRequest(o options) []byte {
	data := tensor(o.shape)
	type input struct {
		Name       string         `json:"name"`
		Shape      []int64        `json:"shape"`
		Datatype   string         `json:"datatype"`
		Parameters map[string]int `json:"parameters"`
	}
	header, err := json.Marshal(struct {
		Parameters map[string]bool `json:"parameters"`
		Inputs     []input         `json:"inputs"`
	}{map[string]bool{"binary_data_output": true},
		[]input{{o.input, o.shape, "FP32", map[string]int{"binary_data_size": len(data)}}}})
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	request := fmt.Appendf(nil, "POST /v2/models/%s/infer HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\n"+
		"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n", o.model, o.address, len(header), len(header)+len(data))
	return append(append(request, header...), data...)
}

// grpcMessage is a ModelInferRequest with raw contents behind gRPC's 5 bytes.
func grpcMessage(o options) ([]byte, error) {
	body, err := proto.Marshal(&inference.ModelInferRequest{
		ModelName:        o.model,
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: o.input, Datatype: "FP32", Shape: o.shape}},
		RawInputContents: [][]byte{tensor(o.shape)},
	})
	if err != nil {
		return nil, err
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	return append(message, body...), nil
}
