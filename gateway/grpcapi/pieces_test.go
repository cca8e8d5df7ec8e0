package grpcapi

import (
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// A client may write an input's contents in as many pieces as it likes: what that takes grows
// with the message, and not with its square.
func TestDecodeContentsInPieces(t *testing.T) {
	const pieces = 20_000
	input := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "INPUT0")
	input = protowire.AppendString(protowire.AppendTag(input, 2, protowire.BytesType), "INT32")
	input = protowire.AppendVarint(protowire.AppendTag(input, 3, protowire.VarintType), pieces)
	for i := range pieces {
		piece := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), uint64(i&127))
		input = protowire.AppendBytes(protowire.AppendTag(input, 5, protowire.BytesType), piece)
	}
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "m")
	message = protowire.AppendBytes(protowire.AppendTag(message, 5, protowire.BytesType), input)
	s := testService(t, &fakeBodies{})
	c := newCall()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.decodeOwned(c, message); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 20*uint64(len(message)) {
		t.Errorf("a message of %d bytes takes %d", len(message), n)
	}
	in := c.Request.Inputs[0]
	if in.Datatype != infer.Int32 || len(in.Data) != 4*pieces || in.Data[4*130] != 130&127 || in.Data[4*(pieces-1)] != byte((pieces-1)&127) {
		t.Errorf("got %v with %d bytes", in.Datatype, len(in.Data))
	}
	c.release()
}
