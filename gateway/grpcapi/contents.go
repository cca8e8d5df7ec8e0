package grpcapi

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// The fields of InferTensorContents and the datatype that the original names when one
// of them is filled for a tensor of another. They are looked at in this order.
// Source: message InferTensorContents, proto/inference/grpc_service.proto.
var contentTypes = [...]infer.Datatype{1: infer.Bool, 2: infer.Int32, 3: infer.Int64, 4: infer.Uint32, 5: infer.Uint64,
	6: infer.FP32, 7: infer.FP64, 8: infer.Bytes}

const numContents = len(contentTypes)

// contentField is the field that holds elements of a datatype; 0 where none does:
// FP16 and BF16 travel as raw contents only.
func contentField(d infer.Datatype) protowire.Number {
	switch d {
	case infer.Bool:
		return 1
	case infer.Int8, infer.Int16, infer.Int32:
		return 2
	case infer.Int64:
		return 3
	case infer.Uint8, infer.Uint16, infer.Uint32:
		return 4
	case infer.Uint64:
		return 5
	case infer.FP32:
		return 6
	case infer.FP64:
		return 7
	case infer.Bytes:
		return 8
	}
	return 0
}

func unexpectedContents(model string, t *infer.Tensor, got infer.Datatype) error {
	want := t.Datatype.String()
	if want == "" {
		want = "<invalid>"
	}
	return infer.Errorf(infer.InvalidArg, "unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%s', expected datatype '%s'",
		t.Name, model, got, want)
}

// measure checks an encoded InferTensorContents and says how many bytes its elements
// take as a tensor of t's datatype. A field that is not t's is InvalidArg.
func measure(model string, t *infer.Tensor, b []byte) (int64, error) {
	var count [numContents]int64
	var text int64 // bytes of BYTES elements
	c, f := cursor{b}, field{}
	for len(c.b) > 0 {
		if !c.next(&f) {
			return 0, errMalformed
		}
		if f.num >= protowire.Number(numContents) {
			continue
		}
		n, ok := elements(&f)
		if !ok {
			return 0, errMalformed
		}
		count[f.num] += n
		if f.num == 8 {
			text += n * (4 + int64(len(f.val)))
		}
	}
	mine := contentField(t.Datatype)
	for num := 1; num < numContents; num++ {
		if count[num] > 0 && protowire.Number(num) != mine {
			return 0, unexpectedContents(model, t, contentTypes[num])
		}
	}
	if t.Datatype == infer.Bytes {
		return text, nil
	}
	return count[mine] * t.Datatype.Size(), nil
}

// elements counts the elements of one occurrence of a field, packed or not. A field in
// a wire type that is not its own has none.
func elements(f *field) (int64, bool) {
	single, width := protowire.VarintType, 0
	switch f.num {
	case 6:
		single, width = protowire.Fixed32Type, 4
	case 7:
		single, width = protowire.Fixed64Type, 8
	case 8:
		single = protowire.BytesType
	}
	switch {
	case f.typ == single:
		return 1, true
	case f.typ != protowire.BytesType:
		return 0, true
	case width > 0:
		return int64(len(f.val) / width), len(f.val)%width == 0
	}
	var n int64
	for b := f.val; len(b) > 0; n++ {
		_, l := varint(b)
		if l <= 0 {
			return 0, false
		}
		b = b[l:]
	}
	return n, true
}

// fill writes the elements of an encoded InferTensorContents, which measure has
// checked, to dst, which has the size that measure said.
func fill(dst []byte, t *infer.Tensor, b []byte) error {
	mine := contentField(t.Datatype)
	c, f := cursor{b}, field{}
	for len(c.b) > 0 {
		if !c.next(&f) {
			return errMalformed
		}
		if f.num != mine {
			continue
		}
		var err error
		if dst, err = fillField(dst, t, &f); err != nil {
			return err
		}
	}
	return nil
}

func fillField(dst []byte, t *infer.Tensor, f *field) ([]byte, error) {
	le := binary.LittleEndian
	switch {
	case f.num == 8 && f.typ == protowire.BytesType:
		le.PutUint32(dst, uint32(len(f.val)))
		copy(dst[4:], f.val)
		return dst[4+len(f.val):], nil
	case f.num == 6 && f.typ == protowire.Fixed32Type:
		le.PutUint32(dst, uint32(f.bits))
		return dst[4:], nil
	case f.num == 7 && f.typ == protowire.Fixed64Type:
		le.PutUint64(dst, f.bits)
		return dst[8:], nil
	case f.num >= 6 && f.num <= 7 && f.typ == protowire.BytesType:
		return dst[copy(dst, f.val):], nil // packed fixed-size numbers are little-endian already
	case f.num >= 6:
		return dst, nil
	case f.typ == protowire.VarintType:
		return putInteger(dst, t, f.bits)
	case f.typ != protowire.BytesType:
		return dst, nil
	}
	var err error
	for b := f.val; len(b) > 0; {
		v, n := varint(b)
		if dst, err = putInteger(dst, t, v); err != nil {
			return dst, err
		}
		b = b[n:]
	}
	return dst, nil
}

// putInteger writes one element of an integer datatype or BOOL. Values that don't fit
// an 8- or 16-bit datatype are refused; the original cuts them silently.
func putInteger(dst []byte, t *infer.Tensor, v uint64) ([]byte, error) {
	le := binary.LittleEndian
	signed, unsigned := int64(int32(v)), uint64(uint32(v))
	switch t.Datatype {
	case infer.Bool:
		dst[0] = 0
		if v != 0 {
			dst[0] = 1
		}
		return dst[1:], nil
	case infer.Int8:
		dst[0] = byte(signed)
		return dst[1:], inRange(t, signed, math.MinInt8, math.MaxInt8)
	case infer.Int16:
		le.PutUint16(dst, uint16(signed))
		return dst[2:], inRange(t, signed, math.MinInt16, math.MaxInt16)
	case infer.Int32, infer.Uint32:
		le.PutUint32(dst, uint32(v))
		return dst[4:], nil
	case infer.Uint8:
		dst[0] = byte(unsigned)
		return dst[1:], inRange(t, int64(unsigned), 0, math.MaxUint8)
	case infer.Uint16:
		le.PutUint16(dst, uint16(unsigned))
		return dst[2:], inRange(t, int64(unsigned), 0, math.MaxUint16)
	}
	le.PutUint64(dst, v)
	return dst[8:], nil
}

func inRange(t *infer.Tensor, v, low, high int64) error {
	if v < low || v > high {
		return infer.Errorf(infer.InvalidArg, "input '%s': value %d does not fit datatype %s", t.Name, v, t.Datatype)
	}
	return nil
}
