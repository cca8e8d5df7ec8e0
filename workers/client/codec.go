package client

import (
	"fmt"

	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of ExecuteRequest and ExecuteResponse in proto/worker/worker.proto.
const (
	fieldHandle        = 1
	fieldInstance      = 2
	fieldBatch         = 3
	fieldTensor        = 4
	fieldCancelBatch   = 5
	fieldCancelRequest = 6

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
	size := 64 + len(m.Batch)
	for _, t := range m.Tensors {
		size += 12
		if len(t) <= inlineTensor {
			size += len(t)
		}
	}
	var out mem.BufferSlice
	head := appendNumber(make([]byte, 0, size), fieldHandle, m.Handle)
	head = appendNumber(head, fieldInstance, uint64(m.Instance))
	if len(m.Batch) > 0 {
		head = protowire.AppendTag(head, fieldBatch, protowire.BytesType)
		head = protowire.AppendBytes(head, m.Batch)
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
	head = appendNumber(head, fieldCancelBatch, m.CancelBatch)
	head = appendNumber(head, fieldCancelRequest, uint64(m.CancelRequest))
	if len(head) > 0 {
		out = append(out, mem.SliceBuffer(head))
	}
	return out, nil
}

func appendNumber(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

// Unmarshal fits encoding.CodecV2. The message's fields share one fresh slice.
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
		if b = b[:len(b):len(b)]; field == fieldResult {
			m.Result = b
		} else {
			m.Tensors = append(m.Tensors, b)
		}
	}
	return nil
}
