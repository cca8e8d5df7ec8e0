package workers

import (
	"unsafe"

	"github.com/sluice-serve/sluice/workers/wire"
)

// passSize is from how many bytes on an output that is an input of its request is named in
// place of being copied. Below, a copy costs less than the request's memory, which is kept
// until the answer is sent.
const passSize = 64 << 10

// Passes fits backend.Batch.
func (x *execution) Passes(output string, data []byte) bool {
	_, ok := x.inputOf(data)
	if ok && x.placed {
		_, elsewhere := x.target(x.only(), output)
		ok = !elsewhere
	}
	x.passing = x.passing || ok
	return ok
}

// passed names an output of a request, or with noRequest of all, that is an input.
func (x *execution) passed(data []byte, request int) (wire.Segment, bool) {
	if !x.passing || request != noRequest && request != x.only() {
		return wire.Segment{}, false
	}
	k, ok := x.inputOf(data)
	return wire.IsInput(k, int64(len(data))), ok
}

// inputOf finds the input of the only request that the backend sees which is data, and which
// its gateway has.
func (x *execution) inputOf(data []byte) (k int, ok bool) {
	if len(data) < passSize || !x.inst.passes || x.only() < 0 {
		return 0, false
	}
	for k := range x.inputs {
		in := x.inputs[k].Data
		if len(in) == len(data) && unsafe.SliceData(in) == unsafe.SliceData(data) && !inRegion(&x.batch.Inputs[k]) {
			return k, true
		}
	}
	return 0, false
}
