package infer

import (
	"encoding/binary"
	"math"
)

// Datatype is the element type of a tensor. Its numbers are those of
// inference.DataType in proto/modelconfig/model_config.proto.
type Datatype uint8

// The datatypes of the v2 protocol. The zero value is no datatype.
const (
	Invalid Datatype = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	FP32
	FP64
	Bytes
	BF16
)

var datatypeNames = [...]string{"<invalid>", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
	"FP16", "FP32", "FP64", "BYTES", "BF16"}

var datatypeSizes = [...]int64{0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2}

// String is the protocol's name, "FP32"; "<invalid>", the original's word, for Invalid
// and what lies outside.
func (d Datatype) String() string {
	if int(d) < len(datatypeNames) {
		return datatypeNames[d]
	}
	return datatypeNames[Invalid]
}

// Size is the number of bytes of one element; 0 for Bytes, whose elements vary.
func (d Datatype) Size() int64 {
	if int(d) < len(datatypeSizes) {
		return datatypeSizes[d]
	}
	return 0
}

// IsFloat says that any bytes are a value and none is an index or a length, so that they
// may change while a model reads them.
func (d Datatype) IsFloat() bool { return d == FP16 || d == BF16 || d == FP32 || d == FP64 }

// ParseDatatype finds a datatype by its protocol name; Invalid where there is none.
func ParseDatatype[T string | []byte](name T) Datatype {
	switch string(name) {
	case "BOOL":
		return Bool
	case "UINT8":
		return Uint8
	case "UINT16":
		return Uint16
	case "UINT32":
		return Uint32
	case "UINT64":
		return Uint64
	case "INT8":
		return Int8
	case "INT16":
		return Int16
	case "INT32":
		return Int32
	case "INT64":
		return Int64
	case "FP16":
		return FP16
	case "FP32":
		return FP32
	case "FP64":
		return FP64
	case "BYTES":
		return Bytes
	case "BF16":
		return BF16
	}
	return Invalid
}

// MaxRank is the most dimensions a tensor may have.
const MaxRank = 32

// Elements multiplies the dimensions of a shape. A negative dimension, a rank over
// MaxRank or a product over math.MaxInt64 is InvalidArg. The empty shape has one.
func Elements(shape []int64) (int64, error) {
	if len(shape) > MaxRank {
		return 0, Errorf(InvalidArg, "shape has %d dimensions, the most is %d", len(shape), MaxRank)
	}
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, Errorf(InvalidArg, "shape %v has a negative dimension", shape)
		}
	}
	for _, d := range shape {
		if d == 0 {
			return 0, nil
		}
	}
	for _, d := range shape {
		if n > math.MaxInt64/d {
			return 0, Errorf(InvalidArg, "shape %v has more than %d elements", shape, int64(math.MaxInt64))
		}
		n *= d
	}
	return n, nil
}

// ByteSize is the bytes a tensor of a fixed-size datatype takes; for Bytes it is -1,
// since only the data tells. Errors as Elements.
func ByteSize(d Datatype, shape []int64) (int64, error) {
	n, err := Elements(shape)
	if err != nil {
		return 0, err
	}
	size := d.Size()
	if size == 0 {
		return -1, nil
	}
	if n > math.MaxInt64/size {
		return 0, Errorf(InvalidArg, "shape %v has more than %d bytes of %s", shape, int64(math.MaxInt64), d)
	}
	return n * size, nil
}

// CountBytesElements walks a BYTES tensor (4-byte little-endian length and that many
// bytes for each element) and returns how many elements it holds. A length that runs
// past the end is InvalidArg.
// Source: the binary tensor data extension of the v2 protocol.
func CountBytesElements(data []byte) (int64, error) {
	var n int64
	for len(data) > 0 {
		if len(data) < 4 {
			return 0, Errorf(InvalidArg, "%d bytes are left after %d elements, too few for a length", len(data), n)
		}
		l := int64(binary.LittleEndian.Uint32(data))
		if l > int64(len(data)-4) {
			return 0, Errorf(InvalidArg, "element %d is %d bytes long, only %d are left", n, l, len(data)-4)
		}
		data = data[4+l:]
		n++
	}
	return n, nil
}
