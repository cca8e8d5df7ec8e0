// Package classification is the classification extension: it turns an output tensor
// into the k largest of its values with their indices and labels.
//
// The pipeline calls it on the goroutine that answers; it has no state. A client chooses k, so an answer is sized
// before it is made, bounded, and counted.
// Source: the classification extension of the v2 protocol.
package classification

import (
	"context"
	"encoding/binary"

	"github.com/sluice-serve/sluice/infer"
)

// DefaultMaxBytes is the default bound on the classes of one response.
const DefaultMaxBytes = 64 << 20

// Ask is what a client wants of one output.
type Ask struct {
	K       int64    // values of each row; over their number it is all of them
	Batched bool     // the first dimension is the batch, and each of its rows is ranked alone
	Labels  []string // by index; may be shorter than the values, or nil

	// MaxBytes bounds the BYTES tensor, and Budget, which may be nil, counts it and what making it takes.
	MaxBytes int64
	Budget   *infer.Budget
}

// Top makes the BYTES tensor "<value>:<index>[:<label>]" of the K largest values of out: shape [rows, K], or [K]
// without a batch. Equal values stand in the order of their indices, NaN below everything. The tensor lies in the
// returned memory, whose one reference is the caller's; nil: it is small, and garbage collected. A datatype that has
// no order and a tensor over MaxBytes are InvalidArg, the latter with reason too_large; a full Budget is Unavailable.
// It gives up when ctx ends.
func Top(ctx context.Context, out infer.Tensor, ask Ask) (infer.Tensor, *infer.Buffer, error) {
	r, err := newRanking(out, ask)
	if err != nil {
		return infer.Tensor{}, nil, err
	}
	t := infer.Tensor{Name: out.Name, Datatype: infer.Bytes, Shape: []int64{r.k}}
	if ask.Batched {
		t.Shape = []int64{r.rows, r.k}
	}
	if r.k == 0 || r.rows == 0 { // a worker may say any number of rows of nothing
		return t, nil, nil
	}
	var memory *infer.Buffer
	t.Data, memory, err = r.classes(ctx, out.Name, ask)
	return t, memory, err
}

// ranking is a tensor whose rows are ranked.
type ranking struct {
	values
	rows, columns, k int64
}

func newRanking(out infer.Tensor, ask Ask) (ranking, error) {
	n, err := infer.Elements(out.Shape)
	if err != nil {
		return ranking{}, err
	}
	r := ranking{values: values{out.Datatype, out.Data}, rows: 1}
	if !r.ordered() {
		return r, infer.Errorf(infer.InvalidArg,
			"class result not available for output due to unsupported type '%s'", out.Datatype)
	}
	if n*out.Datatype.Size() != int64(len(out.Data)) {
		return r, infer.Errorf(infer.Internal, "output '%s' of shape %v has %d bytes", out.Name, out.Shape, len(out.Data))
	}
	if ask.Batched && len(out.Shape) > 0 {
		r.rows = out.Shape[0]
	}
	if r.rows > 0 {
		r.columns = n / r.rows
	}
	r.k = max(0, min(ask.K, r.columns))
	return r, nil
}

const (
	entrySize = 16             // bytes of a value while it is ranked
	indexSize = 4              // and then
	leastSize = 4 + len("0:0") // bytes of the shortest class
	maxValues = 1<<32 - 1      // an index is 32 bits wide
)

// classes ranks all rows, sizes their text, and then writes it.
func (r *ranking) classes(ctx context.Context, name string, ask Ask) ([]byte, *infer.Buffer, error) {
	all := r.rows * r.k
	if all > ask.MaxBytes/int64(leastSize) || r.columns > maxValues {
		return nil, nil, tooLarge(name, all*int64(leastSize), ask.MaxBytes)
	}
	scratch := all*indexSize + r.k*entrySize
	if err := ask.Budget.Take(scratch); err != nil {
		return nil, nil, err
	}
	defer ask.Budget.Give(scratch)
	best, size := make([]uint32, 0, all), int64(0)
	ranked := make([]entry, r.k)
	for row := range r.rows {
		at := row * r.columns
		if err := rank(ctx, ranked, r.columns, func(to []uint64, from int64) { r.keys(to, at+from) }); err != nil {
			return nil, nil, err
		}
		for i := range ranked {
			index := ranked[i].index
			best = append(best, index)
			size += r.sizeOf(at+int64(index), int64(index), ask.Labels)
		}
		if size > ask.MaxBytes {
			return nil, nil, tooLarge(name, size, ask.MaxBytes)
		}
	}
	data, memory, err := ask.Budget.Alloc(size)
	if err != nil {
		return nil, nil, err
	}
	for j, i := range best {
		if j%block == 0 && ctx.Err() != nil {
			memory.Release()
			return nil, nil, ctx.Err()
		}
		data = r.appendClass(data, int64(j)/r.k*r.columns+int64(i), int64(i), ask.Labels)
	}
	return data, memory, nil
}

// tooLarge refuses classes of at least size bytes.
func tooLarge(name string, size, most int64) error {
	return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge,
		"the classes of output '%s' take at least %d bytes, the most in a response is %d", name, size, most)
}

// label is the label of an index; "" where it has none.
func label(labels []string, index int64) string {
	if index < int64(len(labels)) {
		return labels[index]
	}
	return ""
}

// sizeOf is the size of a class, or some bytes more.
func (r *ranking) sizeOf(at, index int64, labels []string) int64 {
	n := 4 + r.textSize(at) + 1 + digits(uint64(index))
	if l := label(labels, index); l != "" {
		n += 1 + len(l)
	}
	return int64(n)
}

// appendClass writes one BYTES element.
func (r *ranking) appendClass(b []byte, at, index int64, labels []string) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(r.appendText(b, at), ':')
	b = appendUint(b, uint64(index))
	if l := label(labels, index); l != "" {
		b = append(append(b, ':'), l...)
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}
