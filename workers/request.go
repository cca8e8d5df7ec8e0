package workers

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// request is one request of an execution; it fits backend.Request.
type request struct {
	x        *execution
	wire     *wire.Request
	index    int // in the batch
	first    int // its first row in the batch
	answered bool
	failed   bool   // with an error
	lost     bool   // it was failed, and its backend does not know
	gone     uint32 // set atomically: nobody waits for it, though its flag doesn't say so
	inputs   []infer.Tensor
}

// ID fits backend.Request.
func (r *request) ID() string { return r.wire.ID }

// Rows fits backend.Request.
func (r *request) Rows() int { return r.wire.Rows }

// Params fits backend.Request.
func (r *request) Params() infer.Params { return r.wire.Params }

// Correlation fits backend.Request.
func (r *request) Correlation() (c infer.Correlation, start, end bool) {
	return r.wire.Correlation, r.wire.Start, r.wire.End
}

// Wants fits backend.Request.
func (r *request) Wants(output string) bool {
	return len(r.wire.Outputs) == 0 || slices.Contains(r.wire.Outputs, output)
}

// Cancelled fits backend.Request.
func (r *request) Cancelled() bool {
	return atomic.LoadUint32(&r.gone) != 0 || atomic.LoadUint32(&r.x.flags[r.wire.Cancel]) != 0
}

// Inputs fits backend.Request.
func (r *request) Inputs() []infer.Tensor {
	if r.x.window != noWindow {
		return r.x.inputs
	}
	if !r.x.cut {
		r.x.cutInputs()
	}
	return r.inputs
}

// cutInputs gives every request its part of every input, in one walk: its rows, or the
// elements that its extent says. What does not split (a batch without batch dimension,
// shared tensors, dimensions that are no rows) goes whole; what was computed of the
// batch is no request's.
func (x *execution) cutInputs() {
	x.cut = true
	for k := range x.inputs {
		t := &x.inputs[k]
		switch x.batch.Inputs[k].Layout {
		case infer.Computed:
			continue
		case infer.Ragged:
			x.cutRagged(t, x.batch.Inputs[k].Extents)
			continue
		}
		if x.batch.Inputs[k].Layout == infer.Shared || x.batch.Rows == 0 || len(t.Shape) == 0 || t.Shape[0] != int64(x.batch.Rows) {
			for i := range x.requests {
				x.requests[i].inputs = append(x.requests[i].inputs, *t)
			}
			continue
		}
		if !t.Place.IsZero() {
			x.cutRows(t)
			continue
		}
		at := 0
		for i := range x.requests {
			r := &x.requests[i]
			end := at + r.wire.Rows*(len(t.Data)/x.batch.Rows)
			if t.Datatype == infer.Bytes {
				end = skipStrings(t.Data, at, r.wire.Rows, t.Shape[1:])
			}
			s := len(x.shapes)
			x.shapes = append(x.shapes, t.Shape...)
			shape := x.shapes[s:len(x.shapes):len(x.shapes)]
			shape[0] = int64(r.wire.Rows)
			r.inputs = append(r.inputs, infer.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: shape, Data: t.Data[at:end:end]})
			at = end
		}
	}
}

// cutRows gives every request its rows of an input in device memory.
func (x *execution) cutRows(t *infer.Tensor) {
	row := t.Place.Size / int64(x.batch.Rows)
	for i := range x.requests {
		r := &x.requests[i]
		s := len(x.shapes)
		x.shapes = append(x.shapes, t.Shape...)
		shape := x.shapes[s:len(x.shapes):len(x.shapes)]
		shape[0] = int64(r.wire.Rows)
		place := infer.Place{Region: t.Place.Region, Offset: t.Place.Offset + int64(r.first)*row,
			Size: int64(r.wire.Rows) * row}
		r.inputs = append(r.inputs, infer.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: shape, Place: place})
	}
}

// cutRagged gives every request its own tensor of a ragged input. The descriptor's
// decoder saw to it that the extents fill the input.
func (x *execution) cutRagged(t *infer.Tensor, extents [][]int64) {
	at := 0
	for i := range x.requests {
		s := len(x.shapes)
		x.shapes = append(x.shapes, extents[i]...)
		shape := x.shapes[s:len(x.shapes):len(x.shapes)]
		end := len(t.Data)
		if !t.Place.IsZero() {
			place := infer.Place{Region: t.Place.Region, Offset: t.Place.Offset + int64(at)}
			if n, err := infer.ByteSize(t.Datatype, shape); err == nil {
				place.Size = min(n, t.Place.Size-int64(at))
			}
			x.requests[i].inputs = append(x.requests[i].inputs,
				infer.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: shape, Place: place})
			at += int(place.Size)
			continue
		}
		if t.Datatype == infer.Bytes {
			end = skipStrings(t.Data, at, 1, shape)
		} else if n, err := infer.ByteSize(t.Datatype, shape); err == nil {
			end = at + int(n)
		}
		x.requests[i].inputs = append(x.requests[i].inputs, infer.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: shape, Data: t.Data[at:end:end]})
		at = end
	}
}

// skipStrings is the offset behind so many rows of BYTES elements. Data that ends
// early was refused at the gateway; here it only must not do harm.
func skipStrings(data []byte, at, rows int, row []int64) int {
	n := int64(rows)
	for _, d := range row {
		n *= d
	}
	for ; n > 0 && len(data)-at >= 4; n-- {
		at = min(at+4+int(binary.LittleEndian.Uint32(data[at:])), len(data))
	}
	return at
}
