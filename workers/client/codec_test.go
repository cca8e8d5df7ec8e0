package client

import (
	"bytes"
	"testing"

	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

func TestExecuteCodecMarshals(t *testing.T) {
	big, small := bytes.Repeat([]byte{7}, inlineTensor+1), []byte("small")
	for name, m := range map[string]*workerpb.ExecuteRequest{
		"empty":  {},
		"batch":  {Batch: &workerpb.Batch{Id: 1, Handle: 1 << 40, Instance: 3}, Tensors: [][]byte{small, big, {}, big, small}},
		"cancel": {Cancel: &workerpb.Cancel{Batch: 1 << 60, Request: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := executeCodec{}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var got workerpb.ExecuteRequest
			if err := proto.Unmarshal(out.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(&got, m) {
				t.Error("the message changed")
			}
		})
	}
	if _, err := (executeCodec{}).Marshal(&workerpb.HelloRequest{}); err == nil {
		t.Error("another message is marshalled")
	}
}

func FuzzExecuteCodec(f *testing.F) {
	whole, err := proto.Marshal(&workerpb.ExecuteResponse{Result: &workerpb.Result{Batch: 7, More: true, Error: &workerpb.Error{Message: "no"}}, Tensors: [][]byte{[]byte("a"), {}, []byte("b")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(append([]byte{0x18, 5}, whole...)) // a field of a later version
	f.Add(whole[:len(whole)-1])
	f.Fuzz(func(t *testing.T, src []byte) {
		var got, want workerpb.ExecuteResponse
		err := executeCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(src)}, &got)
		wantErr := proto.Unmarshal(src, &want)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("got %v, want %v", err, wantErr)
		}
		want.ProtoReflect().SetUnknown(nil)
		if err == nil && !proto.Equal(&got, &want) {
			t.Errorf("got %v, want %v", &got, &want)
		}
	})
}
