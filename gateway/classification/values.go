package classification

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/sluice-serve/sluice/infer"
)

// values are the elements of a tensor of numbers.
type values struct {
	datatype infer.Datatype
	data     []byte
}

// ordered says that the datatype has an order that classes can be ranked by.
func (v *values) ordered() bool {
	switch v.datatype {
	case infer.Uint8, infer.Uint16, infer.Uint32, infer.Uint64, infer.Int8, infer.Int16, infer.Int32, infer.Int64,
		infer.FP32, infer.FP64:
		return true
	}
	return false
}

// signBit turns the order of signed integers into that of unsigned ones.
const signBit = 1 << 63

// keys fills to with numbers whose order is that of the elements from index from on: equal ones have equal keys,
// NaN the least.
func (v *values) keys(to []uint64, from int64) {
	size := v.datatype.Size()
	data := v.data[from*size:]
	le := binary.LittleEndian
	switch v.datatype {
	case infer.FP32:
		for i := range to {
			to[i] = floatKey(float64(math.Float32frombits(le.Uint32(data[4*i:]))))
		}
	case infer.FP64:
		for i := range to {
			to[i] = floatKey(math.Float64frombits(le.Uint64(data[8*i:])))
		}
	case infer.Int8, infer.Int16, infer.Int32, infer.Int64:
		for i := range to {
			to[i] = uint64(v.signed(from+int64(i))) ^ signBit
		}
	default:
		for i := range to {
			to[i] = v.unsigned(from + int64(i))
		}
	}
}

// floatKey is at least 1 for a number, since the key of -Inf is.
func floatKey(f float64) uint64 {
	if f != f {
		return 0
	}
	b := math.Float64bits(f + 0) // both zeros are one
	if b&signBit != 0 {
		return ^b
	}
	return b | signBit
}

func (v *values) float(i int64) float64 {
	if v.datatype == infer.FP32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.data[4*i:])))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(v.data[8*i:]))
}

func (v *values) signed(i int64) int64 {
	switch v.datatype {
	case infer.Int8:
		return int64(int8(v.data[i]))
	case infer.Int16:
		return int64(int16(binary.LittleEndian.Uint16(v.data[2*i:])))
	case infer.Int32:
		return int64(int32(binary.LittleEndian.Uint32(v.data[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(v.data[8*i:]))
}

func (v *values) unsigned(i int64) uint64 {
	switch v.datatype {
	case infer.Uint8:
		return uint64(v.data[i])
	case infer.Uint16:
		return uint64(binary.LittleEndian.Uint16(v.data[2*i:]))
	case infer.Uint32:
		return uint64(binary.LittleEndian.Uint32(v.data[4*i:]))
	}
	return binary.LittleEndian.Uint64(v.data[8*i:])
}

// textSize is the size of what appendText writes, or some bytes more.
func (v *values) textSize(i int64) int {
	switch v.datatype {
	case infer.FP32, infer.FP64:
		return fixedSize(v.float(i))
	case infer.Int8, infer.Int16, infer.Int32, infer.Int64:
		n := v.signed(i)
		if n < 0 {
			return 1 + digits(-uint64(n))
		}
		return digits(uint64(n))
	}
	return digits(v.unsigned(i))
}

// appendText writes an element as Triton prints it: floating point with six decimals.
func (v *values) appendText(b []byte, i int64) []byte {
	switch v.datatype {
	case infer.FP32, infer.FP64:
		return appendFixed(b, v.float(i))
	case infer.Int8, infer.Int16, infer.Int32, infer.Int64:
		return strconv.AppendInt(b, v.signed(i), 10)
	}
	return appendUint(b, v.unsigned(i))
}

func appendUint(b []byte, n uint64) []byte { return strconv.AppendUint(b, n, 10) }

// digits is how many decimal digits a number has.
func digits(n uint64) int {
	d := 1
	for ; n >= 10_000; n /= 10_000 {
		d += 4
	}
	for ; n >= 10; n /= 10 {
		d++
	}
	return d
}
