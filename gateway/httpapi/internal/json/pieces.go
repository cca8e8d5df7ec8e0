package json

import (
	"encoding/binary"

	"github.com/sluice-serve/sluice/infer"
)

// TensorWriter writes tensor data as a JSON array in pieces, which together are what AppendData makes.
// The zero value is at its end.
type TensorWriter struct {
	datatype infer.Datatype
	data     []byte // elements that are left
	text     []byte // of an element of BYTES that was begun, what is left
	state    arrayState
}

type arrayState uint8

const (
	arrayEnded arrayState = iota
	arrayBegins
	arrayFirst   // the next element is the first
	arrayElement // a comma stands before the next element
	arrayText    // within an element of BYTES
)

// NewTensorWriter is one of data, which must not change until it is written. It holds whole elements of d, which has a
// JSON form: the caller has checked both.
func NewTensorWriter(d infer.Datatype, data []byte) TensorWriter {
	return TensorWriter{datatype: d, data: data, state: arrayBegins}
}

// Append appends what follows, until dst has at least size bytes; more says that something is left.
func (a *TensorWriter) Append(dst []byte, size int) (to []byte, more bool) {
	if a.state == arrayBegins {
		dst = append(dst, '[')
		a.state = arrayFirst
	}
	for a.state != arrayEnded && len(dst) < size {
		switch {
		case a.state == arrayText:
			dst = a.appendText(dst, size-len(dst))
		case len(a.data) == 0:
			dst = append(dst, ']')
			a.state = arrayEnded
		case a.datatype == infer.Bytes:
			dst = append(a.appendComma(dst), '"')
			n := 4 + int64(binary.LittleEndian.Uint32(a.data))
			a.text, a.data, a.state = a.data[4:n], a.data[n:], arrayText
		default:
			dst = a.appendElements(a.appendComma(dst), size)
		}
	}
	return dst, a.state != arrayEnded
}

func (a *TensorWriter) appendComma(dst []byte) []byte {
	if a.state == arrayFirst {
		a.state = arrayElement
		return dst
	}
	return append(dst, ',')
}

// appendElements appends elements of a fixed size, at least one.
func (a *TensorWriter) appendElements(dst []byte, size int) []byte {
	data, n := a.data, int(a.datatype.Size())
	dst = appendElement(dst, a.datatype, data[:n])
	for data = data[n:]; len(data) > 0 && len(dst) < size; data = data[n:] {
		dst = appendElement(append(dst, ','), a.datatype, data[:n])
	}
	a.data = data
	return dst
}

// appendText appends about room bytes of an element of BYTES, and its end.
func (a *TensorWriter) appendText(dst []byte, room int) []byte {
	n := min(len(a.text), max(room/6, 1)) // a byte's text has six bytes at most
	dst = appendText(dst, a.text[:n])
	if a.text = a.text[n:]; len(a.text) > 0 {
		return dst
	}
	a.state = arrayElement
	return append(dst, '"')
}
