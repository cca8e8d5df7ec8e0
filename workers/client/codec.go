package client

import (
	"fmt"

	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of ExecuteRequest and ExecuteResponse in proto/worker/worker.proto.
const (
	fieldBatch  = 1
	fieldTensor = 2
	fieldCancel = 3

	fieldResult       = 1
	fieldResultTensor = 2
)

// inlineTensor is up to what size a tensor is copied behind what stands before it.
const inlineTensor = 4 << 10

// executeCodec is the protobuf encoding of the Execute stream without copies of large
// tensors on the way out, and with one copy of a message on the way in.
// Source: grpc encoding.CodecV2.
type executeCodec struct{}

// Name is the content subtype; the worker sees plain protobuf.
func (executeCodec) Name() string { return "proto" }

// Marshal fits encoding.CodecV2. The tensors must not change until the batch's final
// result or the end of the connection.
func (executeCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*workerpb.ExecuteRequest)
	if !ok {
		return nil, fmt.Errorf("the stream of batches can't carry a %T", v)
	}
	batch, cancel := 0, 0
	if m.Batch != nil {
		batch = proto.Size(m.Batch)
	}
	if m.Cancel != nil {
		cancel = proto.Size(m.Cancel)
	}
	size := 32 + batch + cancel
	for _, t := range m.Tensors {
		size += 12
		if len(t) <= inlineTensor {
			size += len(t)
		}
	}
	var out mem.BufferSlice
	head, err := appendMessage(make([]byte, 0, size), fieldBatch, m.Batch, batch, m.Batch != nil)
	if err != nil {
		return nil, err
	}
	for _, t := range m.Tensors {
		head = protowire.AppendTag(head, fieldTensor, protowire.BytesType)
		if len(t) <= inlineTensor {
			head = protowire.AppendBytes(head, t)
			continue
		}
		head = protowire.AppendVarint(head, uint64(len(t)))
		out = append(out, mem.SliceBuffer(head), mem.SliceBuffer(t))
		head = head[len(head):]
	}
	if head, err = appendMessage(head, fieldCancel, m.Cancel, cancel, m.Cancel != nil); err != nil {
		return nil, err
	}
	if len(head) > 0 {
		out = append(out, mem.SliceBuffer(head))
	}
	return out, nil
}

// appendMessage writes a field that is a message of size bytes, if it is set.
func appendMessage(dst []byte, field protowire.Number, m proto.Message, size int, set bool) ([]byte, error) {
	if !set {
		return dst, nil
	}
	dst = protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.BytesType), uint64(size))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, m)
}

// Unmarshal fits encoding.CodecV2. The tensors share one fresh slice.
func (executeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*workerpb.ExecuteResponse)
	if !ok {
		return fmt.Errorf("the stream of batches can't bring a %T", v)
	}
	src := data.Materialize()
	for len(src) > 0 {
		field, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if field > protowire.MaxValidNumber {
			return fmt.Errorf("no message has a field %d", field)
		}
		src = src[n:]
		if kind != protowire.BytesType || field != fieldResult && field != fieldResultTensor {
			if n = protowire.ConsumeFieldValue(field, kind, src); n < 0 {
				return protowire.ParseError(n)
			}
			src = src[n:] // of a later version
			continue
		}
		b, n := protowire.ConsumeBytes(src)
		if n < 0 {
			return protowire.ParseError(n)
		}
		src = src[n:]
		if field == fieldResultTensor {
			m.Tensors = append(m.Tensors, b[:len(b):len(b)])
			continue
		}
		if m.Result == nil {
			m.Result = &workerpb.Result{}
		}
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(b, m.Result); err != nil {
			return err
		}
	}
	return nil
}
