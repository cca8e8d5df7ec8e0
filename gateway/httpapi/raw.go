package httpapi

import (
	"encoding/binary"
	"io"
	"math"

	"github.com/sluice-serve/sluice/infer"
)

// rawRequest reads a body that is the bytes of the model's single input.
// Source: raw binary request, binary tensor data extension.
func (x *exchange) rawRequest(b *bodyReader, bodies Bodies, control Control) error {
	size := b.length
	if err := bodies.Fits(align + size); err != nil {
		return err
	}
	t := intake{bodies: bodies, growth: growth, total: align + size}
	if size < 0 {
		b.limit = min(b.limit, bodies.Most()-align-1)
		t.growth, t.total = blindGrowth, align+b.limit+1
	}
	err := t.takeAll(b)
	if err != nil {
		t.drop()
		return err
	}
	size = t.at - align
	tensor, err := control.RawInput(x.m.req.Model, x.m.req.Version, size)
	if err != nil {
		t.drop()
		return err
	}
	from := int64(align)
	if tensor.Datatype == infer.Bytes {
		if size > math.MaxUint32 {
			t.drop()
			return bodyTooLarge(size, math.MaxUint32)
		}
		from -= 4 // the one element's length stands in front
		binary.LittleEndian.PutUint32(t.buf.Data[from:], uint32(size))
	}
	tensor.Data = t.buf.Data[from : align+size : align+size]
	x.m.inputs[0] = tensor
	x.m.req.Inputs = x.m.inputs[:1]
	x.m.req.Memory = t.buf
	return nil
}

// takeAll reads the whole body behind one free stretch of align bytes.
func (t *intake) takeAll(b *bodyReader) error {
	if err := t.pad(align); err != nil {
		return err
	}
	err := t.take(b, t.total)
	switch {
	case err == io.EOF && b.length < 0:
		return nil
	case err != nil:
		return b.fault(err)
	case b.length < 0:
		return bodyTooLarge(t.at-align, b.limit)
	}
	return nil
}
