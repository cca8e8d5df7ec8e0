package grpcapi

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// scarceBodies has no memory for large bodies.
type scarceBodies struct{ fakeBodies }

var errScarce = errors.New("scarce")

func (b *scarceBodies) Body(n int64) (*infer.Buffer, error) {
	if n >= copyFrom {
		return nil, errScarce
	}
	return b.fakeBodies.Body(n)
}

// A message that there is no memory for is looked at for its model's name alone: typed contents at
// its beginning take no memory, which nobody would give back.
func TestRefusedMessageHoldsNoMemory(t *testing.T) {
	bodies := &scarceBodies{}
	h := &hotCall{}
	h.s = testService(t, bodies)
	h.shapes = h.dims[:0]
	first, err := proto.Marshal(&inference.ModelInferRequest{ModelName: "m", Inputs: []*inference.ModelInferRequest_InferInputTensor{
		{Name: "IN", Datatype: "INT64", Shape: []int64{1, 4}, Contents: &inference.InferTensorContents{Int64Contents: []int64{1, 2, 3, 4}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Memory(1<<20, first); err != errScarce {
		t.Fatal(err)
	}
	if n := bodies.out.Load(); n != 0 || h.Request.Model != "m" {
		t.Errorf("%d bytes are held for a call of model %q", n, h.Request.Model)
	}
}
