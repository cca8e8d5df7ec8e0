package json

import (
	"encoding/binary"
	"math"

	"github.com/sluice-serve/sluice/infer"
)

// AppendTensor reads the array that follows as tensor data of datatype d, nested in
// any way, and appends its elements in little-endian form to dst; a BYTES element gets
// its 4-byte length. It returns how many elements there were. Of more than limit
// elements the rest is checked and counted, not kept. FP16 and BF16 are not for JSON;
// the caller refuses them.
//
// An Error without Syntax means that the value was read over but is no such data; its
// text is the original's, or ours where an integer does not fit d (the original wraps
// it silently).
func (s *Scanner) AppendTensor(dst []byte, d infer.Datatype, limit int64) ([]byte, int64, error) {
	if s.Kind() != Array {
		return dst, 0, s.wrong(NotArray)
	}
	start, depth, size := s.pos, s.depth, len(dst)
	dst, n, err := s.elements(dst, d, limit)
	if e, ok := err.(*Error); ok && !e.Syntax {
		s.pos, s.depth, s.first = start, depth, false
		if err := s.Skip(); err != nil {
			return dst, 0, err
		}
		return dst[:size], 0, e
	}
	return dst, n, err
}

// AppendElement reads one value as AppendTensor reads the elements of an array.
func (s *Scanner) AppendElement(dst []byte, d infer.Datatype) ([]byte, error) {
	at, size := s.Mark(), len(dst)
	dst, err := s.element(dst, d)
	if e, ok := err.(*Error); ok && !e.Syntax {
		s.Seek(at)
		if err := s.Skip(); err != nil {
			return dst, err
		}
		return dst[:size], e
	}
	return dst, err
}

// wrong skips a value and says what it is not.
func (s *Scanner) wrong(text string) error {
	if err := s.Skip(); err != nil {
		return err
	}
	return &Error{Text: text}
}

func (s *Scanner) elements(dst []byte, d infer.Datatype, limit int64) ([]byte, int64, error) {
	base := s.depth
	if err := s.Open(); err != nil {
		return dst, 0, err
	}
	var n int64
	for {
		ok, err := s.Next()
		if err != nil {
			return dst, n, err
		}
		if !ok {
			if s.depth == base {
				return dst, n, nil
			}
			continue
		}
		if s.at(s.pos) == '[' {
			if err := s.Open(); err != nil {
				return dst, n, err
			}
			continue
		}
		if n++; n > limit {
			if err := s.Skip(); err != nil {
				return dst, n, err
			}
			continue
		}
		if dst, err = s.element(dst, d); err != nil {
			return dst, n, err
		}
	}
}

func (s *Scanner) element(dst []byte, d infer.Datatype) ([]byte, error) {
	kind := s.Kind()
	if kind == None {
		return dst, s.syntax(textValue, s.pos)
	}
	switch d {
	case infer.Bytes:
		return s.bytesElement(dst, kind)
	case infer.Bool:
		if kind != Bool {
			return dst, &Error{Text: NotBool}
		}
		v, err := s.Bool()
		if v {
			return append(dst, 1), err
		}
		return append(dst, 0), err
	}
	if kind != Number {
		return dst, &Error{Text: notA(d)}
	}
	n, err := s.number()
	if err != nil {
		return dst, err
	}
	switch d {
	case infer.FP32, infer.FP64:
		f, err := s.float(n)
		if err != nil {
			return dst, err
		}
		if d == infer.FP32 {
			single := s.single(n, f)
			if math.IsInf(float64(single), 0) && !math.IsInf(f, 0) {
				return dst, s.outOfRange(n, d)
			}
			return binary.LittleEndian.AppendUint32(dst, math.Float32bits(single)), nil
		}
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(f)), nil
	}
	return s.integer(dst, d, n)
}

func (s *Scanner) bytesElement(dst []byte, kind Kind) ([]byte, error) {
	if kind != String {
		return dst, &Error{Text: NotString}
	}
	at := len(dst)
	dst, err := s.AppendStr(append(dst, 0, 0, 0, 0))
	if err != nil {
		return dst, err
	}
	l := len(dst) - at - 4
	if int64(l) > math.MaxUint32 {
		return dst[:at], &Error{Text: "a string is longer than 4294967295 bytes"}
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(l))
	return dst, nil
}

// notA is the fault of a value that is no number for datatype d.
func notA(d infer.Datatype) string {
	switch d {
	case infer.FP32, infer.FP64:
		return NotNumber
	case infer.Uint8, infer.Uint16, infer.Uint32, infer.Uint64:
		return NotUint
	}
	return NotInt
}

func (s *Scanner) integer(dst []byte, d infer.Datatype, n number) ([]byte, error) {
	bits := uint(8 * d.Size())
	switch d {
	case infer.Int8, infer.Int16, infer.Int32, infer.Int64:
		v, ok := n.int()
		if !ok {
			return dst, s.notInteger(n, NotInt)
		}
		if v < -1<<(bits-1) || v > 1<<(bits-1)-1 {
			return dst, s.outOfRange(n, d)
		}
		return appendBits(dst, uint64(v), bits), nil
	case infer.Uint8, infer.Uint16, infer.Uint32, infer.Uint64:
		v, ok := n.uint()
		if !ok {
			return dst, s.notInteger(n, NotUint)
		}
		if bits < 64 && v>>bits != 0 {
			return dst, s.outOfRange(n, d)
		}
		return appendBits(dst, v, bits), nil
	}
	return dst, &Error{Text: "the datatype has no JSON form"}
}

func appendBits(dst []byte, v uint64, bits uint) []byte {
	switch bits {
	case 8:
		return append(dst, byte(v))
	case 16:
		return binary.LittleEndian.AppendUint16(dst, uint16(v))
	case 32:
		return binary.LittleEndian.AppendUint32(dst, uint32(v))
	}
	return binary.LittleEndian.AppendUint64(dst, v)
}

// notInteger is the fault of a number that is no integer: too big for a double is a
// fault of the document, as in the original.
func (s *Scanner) notInteger(n number, text string) error {
	if _, err := s.float(n); err != nil {
		return err
	}
	return &Error{Text: text}
}

// OutOfRange starts the text of a number that its datatype can't hold.
const OutOfRange = "value "

// maxQuoted is how much of a number is quoted: its text may be as long as its document.
const maxQuoted = 40

func (s *Scanner) outOfRange(n number, d infer.Datatype) error {
	text := string(s.data[n.start:min(n.end, n.start+maxQuoted)])
	if n.end-n.start > maxQuoted {
		text += "..."
	}
	return &Error{Text: OutOfRange + text + " is out of range for " + d.String()}
}
