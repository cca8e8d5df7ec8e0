package json

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/sluice-serve/sluice/infer"
)

const hexDigits = "0123456789ABCDEF"

// plain marks the bytes that stand in a string as they are. Bytes from 0x80 do: what
// is not UTF-8 goes out as it came, like the original's, since any replacement would
// change a tensor.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// AppendString appends s as a JSON string.
func AppendString[T string | []byte](dst []byte, s T) []byte {
	return append(appendText(append(dst, '"'), s), '"')
}

// appendText appends what stands between the quotes of a string. Each byte has its own text, so that a string may be
// written in parts.
func appendText[T string | []byte](dst []byte, s T) []byte {
	from := 0
	for i := range len(s) {
		c := s[i]
		if plain[c] {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, s[from:]...)
}

// AppendFloat appends the shortest text that reads back as the same double (bits 64)
// or single (bits 32), always with a point or an exponent, so that readers with types
// see a float: 1.0, 0.00001, 1e-7, 1e21, NaN, Infinity. The form is the original's; it
// prints a single as a double, with digits that say nothing.
func AppendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case f != f:
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	if i := int64(f); float64(i) == f && i > -1<<53 && i < 1<<53 && (i != 0 || !math.Signbit(f)) {
		return append(strconv.AppendInt(dst, i, 10), '.', '0')
	}
	abs := math.Abs(f)
	if abs >= 1e21 || abs < 1e-6 && abs > 0 {
		return appendExponent(dst, f, bits)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, bits)
	for _, c := range dst[start:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, '.', '0')
}

// appendExponent writes 1e21 and 1e-7, without the plus and the zeros of Go's form.
func appendExponent(dst []byte, f float64, bits int) []byte {
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits)
	for i := start; i < len(dst); i++ {
		if dst[i] != 'e' {
			continue
		}
		out := i + 1
		if dst[out] == '-' {
			out++
		}
		in := i + 2
		for in < len(dst)-1 && dst[in] == '0' {
			in++
		}
		return append(dst[:out], dst[in:]...)
	}
	return dst
}

// AppendData appends tensor data as a flat JSON array. data holds whole elements of d:
// the caller has checked its size; for BYTES a length that runs past the end stops
// there with false. FP16 and BF16 have no JSON form: false.
func AppendData(dst []byte, d infer.Datatype, data []byte) ([]byte, bool) {
	if d == infer.Bytes {
		return appendBytes(append(dst, '['), data)
	}
	size := int(d.Size())
	if !HasForm(d) || len(data)%size != 0 {
		return dst, false
	}
	dst = append(dst, '[')
	for i := 0; i < len(data); i += size {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendElement(dst, d, data[i:i+size])
	}
	return append(dst, ']'), true
}

// HasForm says that tensors of a datatype have a JSON form.
func HasForm(d infer.Datatype) bool {
	return d == infer.Bytes || d.Size() > 0 && d != infer.FP16 && d != infer.BF16
}

// MaxSize is the most bytes that AppendData makes of size bytes of data.
func MaxSize(d infer.Datatype, size int64) int64 {
	longest := int64(26) // -1.7976931348623157e-308 and a comma, or twenty-one digits with sign and point
	switch d {
	case infer.Bytes:
		return 2 + 6*size // a control character becomes six, and two quotes and a comma stand for four bytes of length
	case infer.Bool, infer.Int8:
		longest = 6
	case infer.Uint8:
		longest = 4
	}
	return 2 + size/max(d.Size(), 1)*longest
}

func appendElement(dst []byte, d infer.Datatype, e []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case infer.Bool:
		if e[0] != 0 {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case infer.Uint8:
		return strconv.AppendUint(dst, uint64(e[0]), 10)
	case infer.Uint16:
		return strconv.AppendUint(dst, uint64(le.Uint16(e)), 10)
	case infer.Uint32:
		return strconv.AppendUint(dst, uint64(le.Uint32(e)), 10)
	case infer.Uint64:
		return strconv.AppendUint(dst, le.Uint64(e), 10)
	case infer.Int8:
		return strconv.AppendInt(dst, int64(int8(e[0])), 10)
	case infer.Int16:
		return strconv.AppendInt(dst, int64(int16(le.Uint16(e))), 10)
	case infer.Int32:
		return strconv.AppendInt(dst, int64(int32(le.Uint32(e))), 10)
	case infer.Int64:
		return strconv.AppendInt(dst, int64(le.Uint64(e)), 10)
	case infer.FP32:
		return AppendFloat(dst, float64(math.Float32frombits(le.Uint32(e))), 32)
	}
	return AppendFloat(dst, math.Float64frombits(le.Uint64(e)), 64)
}

func appendBytes(dst, data []byte) ([]byte, bool) {
	for first := true; len(data) > 0; first = false {
		if len(data) < 4 {
			return dst, false
		}
		l := int64(binary.LittleEndian.Uint32(data))
		if l > int64(len(data)-4) {
			return dst, false
		}
		if !first {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, data[4:4+l])
		data = data[4+l:]
	}
	return append(dst, ']'), true
}
