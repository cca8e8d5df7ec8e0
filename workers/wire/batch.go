package wire

import (
	"math"

	"github.com/sluice-serve/sluice/infer"
)

// The cancel flags of a batch stand behind its descriptor in the request arena, each a
// 32-bit word that is read and written atomically: the gateway stores 1 into word
// Request.Cancel when nobody waits for that request any more, and the worker, which
// maps the arena read-only, loads it. The descriptor's offset is a multiple of 64, so
// the flags, at the next multiple of 8 behind it, are aligned. On the gRPC stream the
// worker keeps flags of its own and sets them from cancel messages.
const flagSize = 4

// FlagsOffset is where the first flag stands, from the start of a descriptor of n bytes.
func FlagsOffset(n int64) int64 { return (n + 7) &^ 7 }

// FlagsSize is how many bytes the flags of so many requests take.
func FlagsSize(requests int) int64 { return int64(requests) * flagSize }

// AppendBatch writes b behind dst. It allocates only where dst is too small.
func AppendBatch(dst []byte, b *Batch) []byte {
	dst = append(dst, version, kindBatch, 0, 0)
	dst = le.AppendUint64(dst, b.ID)
	dst = le.AppendUint32(dst, uint32(b.Rows))
	dst = le.AppendUint32(dst, uint32(len(b.Requests)))
	dst = le.AppendUint32(dst, uint32(len(b.Inputs)))
	for i := range b.Requests {
		dst = appendRequest(dst, &b.Requests[i])
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		at := len(dst)
		dst = appendTensor(dst, in.Name, in.Datatype, in.Shape)
		dst[at+2] = layoutNumber(in.Layout) // a tensor's spare byte
		dst = le.AppendUint32(dst, uint32(len(in.Segments)))
		for _, s := range in.Segments {
			dst = appendSegment(dst, s)
		}
		if in.Layout == infer.Ragged {
			dst = appendExtents(dst, in.Extents)
		}
	}
	return dst
}

// appendExtents writes as many shapes as there are requests.
func appendExtents(dst []byte, extents [][]int64) []byte {
	for _, shape := range extents {
		dst = append(dst, byte(len(shape)))
		for _, n := range shape {
			dst = le.AppendUint64(dst, uint64(n))
		}
	}
	return dst
}

func appendRequest(dst []byte, q *Request) []byte {
	dst = le.AppendUint64(dst, q.Correlation.ID)
	dst = le.AppendUint64(dst, uint64(q.Timeout))
	dst = le.AppendUint32(dst, uint32(q.Rows))
	dst = le.AppendUint32(dst, q.Cancel)
	dst = appendBool(dst, q.Start)
	dst = appendBool(dst, q.End)
	placed := len(q.Places) > 0
	dst = append(appendBool(dst, placed), 0)
	dst = le.AppendUint32(dst, uint32(len(q.Params)))
	dst = le.AppendUint32(dst, uint32(len(q.Outputs)))
	dst = appendString(dst, q.ID)
	dst = appendString(dst, q.Correlation.Str)
	dst = appendParams(dst, q.Params)
	for i, name := range q.Outputs {
		dst = appendString(dst, name)
		if placed {
			dst = appendSegment(dst, q.Places[i])
		}
	}
	return dst
}

// DecodeBatch reads all of src into b. Slices and equal strings that b holds are used
// again, so what it decoded before must not be in use; nothing of src is. It checks
// that counts, ranks, datatypes and sizes fit together; whether segments lie in the
// arena is checked by Arena.View. Errors are Internal and leave b in no useful state.
func DecodeBatch(src []byte, b *Batch) error {
	r := reader{src: src}
	r.begin(kindBatch)
	r.bytes(2)
	b.ID = r.u64()
	b.Rows = r.rows()
	requests := r.count("requests", minRequest)
	inputs := r.count("inputs", minInput)
	b.Requests = resize(b.Requests, requests)
	for i := range b.Requests {
		r.request(&b.Requests[i], requests)
	}
	if int64(inputs)*minInput > int64(len(r.src)) {
		r.fail("%d inputs in %d bytes", inputs, len(r.src))
		inputs = 0
	}
	b.Inputs = resize(b.Inputs, inputs)
	for i := range b.Inputs {
		in := &b.Inputs[i]
		in.Layout = r.layout()
		in.Shape = r.tensor(&in.Name, &in.Datatype, in.Shape)
		in.Segments = resize(in.Segments, r.count("segments", minSegment))
		var size int64
		for k := range in.Segments {
			s := r.segment()
			in.Segments[k] = s
			if s.Length > math.MaxInt64-size {
				r.fail("segments of input '%s' overflow", in.Name)
				break
			}
			size += s.Length
		}
		r.checkSize(in.Name, in.Datatype, in.Shape, size)
		in.Extents = in.Extents[:0]
		if in.Layout == infer.Ragged {
			r.extents(in, requests)
		}
	}
	return r.end()
}

// layout looks ahead at a tensor's spare byte.
func (r *reader) layout() infer.Layout {
	if len(r.src) < 3 {
		return infer.ByRow // tensor will fail
	}
	l, ok := layoutFrom(r.src[2])
	if !ok {
		r.fail("layout %d", r.src[2])
	}
	return l
}

// extents reads the requests' shapes; together they have the input's elements.
func (r *reader) extents(in *Input, requests int) {
	in.Extents = resize(in.Extents, r.left(requests, 1))
	for i := range in.Extents {
		rank := int(r.u8())
		if rank > infer.MaxRank || rank*minDim > len(r.src) {
			r.fail("an extent of %d dimensions in %d bytes", rank, len(r.src))
			rank = 0
		}
		shape := resize(in.Extents[i], rank)
		for k := range shape {
			shape[k] = r.positive("a dimension")
		}
		in.Extents[i] = shape
	}
	r.checkExtents(in)
}

// checkExtents says that the requests' shapes together have the input's elements.
func (r *reader) checkExtents(in *Input) {
	var sum int64
	for _, shape := range in.Extents {
		n, err := infer.Elements(shape)
		if err != nil || n > math.MaxInt64-sum {
			r.fail("an extent of shape %v", shape)
			n = 0
		}
		sum += n
	}
	if r.err == nil && (len(in.Shape) != 1 || in.Shape[0] != sum) {
		r.fail("input '%s' of shape %v has requests of %d elements", in.Name, in.Shape, sum)
	}
}

func (r *reader) rows() int {
	n := r.u32()
	if n > math.MaxInt32 {
		r.fail("%d rows", n)
		return 0
	}
	return int(n)
}

func (r *reader) request(q *Request, requests int) {
	q.Correlation.ID = r.u64()
	q.Timeout = r.positive("a timeout")
	q.Rows = r.rows()
	if q.Cancel = r.u32(); r.err == nil && int64(q.Cancel) >= int64(requests) {
		r.fail("cancel flag %d of %d", q.Cancel, requests)
	}
	q.Start, q.End = r.bool(), r.bool()
	placed := r.bool()
	r.bytes(1)
	params := r.count("parameters", minParam)
	outputs := r.count("outputs", minString)
	r.string(&q.ID)
	r.string(&q.Correlation.Str)
	q.Params = r.params(q.Params, r.left(params, minParam))
	q.Outputs = resize(q.Outputs, r.left(outputs, minString))
	q.Places = q.Places[:0]
	for i := range q.Outputs {
		r.string(&q.Outputs[i])
		if placed {
			q.Places = append(q.Places, r.destination())
		}
	}
}

// destination reads where an output goes: into a region, or nowhere.
func (r *reader) destination() Segment {
	s := r.segment()
	if _, _, ok := s.Region(); !ok && s != (Segment{}) {
		r.fail("a destination of %d bytes at %d", s.Length, s.Offset)
		return Segment{}
	}
	return s
}

// left looks again at a count whose elements do not stand right behind it.
func (r *reader) left(n, size int) int {
	if n > len(r.src)/size {
		r.fail("%d elements in %d bytes", n, len(r.src))
		return 0
	}
	return n
}
