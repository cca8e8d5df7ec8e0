// Package classification is the classification extension: it turns an output tensor
// into the k largest of its values with their indices and labels.
//
// The pipeline calls it on the goroutine that answers; it has no state.
// Source: the classification extension of the v2 protocol.
package classification

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-serve/sluice/infer"
)

// Top makes the BYTES tensor "<value>:<index>[:<label>]" of the k largest values of
// out, for each row where batched says that its first dimension is the batch: shape
// [rows, k], or [k] without a batch. k over the number of values is all of them. Equal
// values stand in the order of their indices. labels may be shorter than the values,
// or nil. The tensor's memory is its own. A datatype that has no order is InvalidArg.
func Top(out infer.Tensor, k int64, batched bool, labels []string) (infer.Tensor, error) {
	n, err := infer.Elements(out.Shape)
	if err != nil {
		return infer.Tensor{}, err
	}
	read := reader(out.Datatype)
	if read == nil {
		return infer.Tensor{}, infer.Errorf(infer.InvalidArg, "class result not available for output due to unsupported type '%s'", out.Datatype)
	}
	if n*out.Datatype.Size() != int64(len(out.Data)) {
		return infer.Tensor{}, infer.Errorf(infer.Internal, "output '%s' of shape %v has %d bytes", out.Name, out.Shape, len(out.Data))
	}
	rows := int64(1)
	if batched && len(out.Shape) > 0 {
		rows = out.Shape[0]
	}
	classes := int64(0)
	if rows > 0 {
		classes = n / rows
	}
	k = max(0, min(k, classes))
	t := infer.Tensor{Name: out.Name, Datatype: infer.Bytes, Shape: []int64{k}}
	if batched {
		t.Shape = []int64{rows, k}
	}
	var best []class
	for row := int64(0); row < rows && k > 0; row++ { // a worker may say any number of rows of nothing
		data := out.Data[row*classes*out.Datatype.Size():]
		best = largest(best[:0], k, classes, func(i int64) number { return read(data, i) })
		for _, c := range best {
			t.Data = appendClass(t.Data, c.value, c.index, labels)
		}
	}
	return t, nil
}

type class struct {
	value number
	index int64
}

// fewClasses is up to how many classes insertion beats sorting all values.
const fewClasses = 16

// largest fills best with the k largest of n values, largest first.
func largest(best []class, k, n int64, value func(int64) number) []class {
	if k > fewClasses {
		for i := int64(0); i < n; i++ {
			best = append(best, class{value(i), i})
		}
		slices.SortStableFunc(best, func(a, b class) int { return compare(b.value, a.value) })
		return best[:k]
	}
	for i := int64(0); i < n && k > 0; i++ {
		c := class{value(i), i}
		if int64(len(best)) == k {
			if compare(c.value, best[k-1].value) <= 0 {
				continue
			}
			best = best[:k-1]
		}
		at := len(best)
		for at > 0 && compare(c.value, best[at-1].value) > 0 {
			at--
		}
		best = slices.Insert(best, at, c)
	}
	return best
}

// number is a value of any numeric datatype; 64-bit integers keep every digit.
type number struct {
	f    float64
	i    int64
	u    uint64
	kind byte // f, i or u
}

func compare(a, b number) int {
	switch a.kind {
	case 'i':
		return cmpOrdered(a.i, b.i)
	case 'u':
		return cmpOrdered(a.u, b.u)
	}
	// NaN sorts below everything, so that it is never a top class
	switch {
	case math.IsNaN(a.f) && math.IsNaN(b.f):
		return 0
	case math.IsNaN(a.f):
		return -1
	case math.IsNaN(b.f):
		return 1
	}
	return cmpOrdered(a.f, b.f)
}

func cmpOrdered[T int64 | uint64 | float64](a, b T) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// appendClass writes one BYTES element, numbers as the original prints them: six
// decimals for floating point.
func appendClass(b []byte, v number, index int64, labels []string) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	switch v.kind {
	case 'i':
		b = strconv.AppendInt(b, v.i, 10)
	case 'u':
		b = strconv.AppendUint(b, v.u, 10)
	default:
		b = appendFloat(b, v.f)
	}
	b = append(b, ':')
	b = strconv.AppendInt(b, index, 10)
	if index < int64(len(labels)) && labels[index] != "" {
		b = append(b, ':')
		b = append(b, labels[index]...)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// appendFloat prints as C's %f does, NaN and infinities included.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	return strconv.AppendFloat(b, f, 'f', 6, 64)
}

// reader gives the function that reads element i of a datatype; nil for datatypes
// without order.
func reader(d infer.Datatype) func(data []byte, i int64) number {
	le := binary.LittleEndian
	signed := func(v int64) number { return number{kind: 'i', i: v} }
	unsigned := func(v uint64) number { return number{kind: 'u', u: v} }
	float := func(v float64) number { return number{kind: 'f', f: v} }
	switch d {
	case infer.Uint8:
		return func(b []byte, i int64) number { return unsigned(uint64(b[i])) }
	case infer.Uint16:
		return func(b []byte, i int64) number { return unsigned(uint64(le.Uint16(b[2*i:]))) }
	case infer.Uint32:
		return func(b []byte, i int64) number { return unsigned(uint64(le.Uint32(b[4*i:]))) }
	case infer.Uint64:
		return func(b []byte, i int64) number { return unsigned(le.Uint64(b[8*i:])) }
	case infer.Int8:
		return func(b []byte, i int64) number { return signed(int64(int8(b[i]))) }
	case infer.Int16:
		return func(b []byte, i int64) number { return signed(int64(int16(le.Uint16(b[2*i:])))) }
	case infer.Int32:
		return func(b []byte, i int64) number { return signed(int64(int32(le.Uint32(b[4*i:])))) }
	case infer.Int64:
		return func(b []byte, i int64) number { return signed(int64(le.Uint64(b[8*i:]))) }
	case infer.FP32:
		return func(b []byte, i int64) number { return float(float64(math.Float32frombits(le.Uint32(b[4*i:])))) }
	case infer.FP64:
		return func(b []byte, i int64) number { return float(math.Float64frombits(le.Uint64(b[8*i:]))) }
	}
	return nil
}
