package wire

import (
	"encoding/binary"
	"math"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Table is the number of the byte table, by which Hello names it.
const Table = 2

// The format: little-endian numbers of fixed size without alignment, strings and lists
// behind a 32-bit count. The first byte is the version, the second says what it is.
const (
	version    = Table
	kindBatch  = 1
	kindResult = 2
	kindCall   = 3
	kindAnswer = 4
)

// The fewest bytes that an element of a list takes, so that a count can be refused
// before anything is allocated for it.
const (
	minRequest  = 8 + 8 + 4 + 4 + 4 + 4 + 4 + 4 + 4
	minInput    = 4 + 4 + 4
	minParam    = 4 + 2
	minString   = 4
	minSegment  = 16
	minDim      = 8
	minOutput   = 4 + 4 + minSegment
	minResponse = 8 + 4 + 4 + 4 + 4
)

var le = binary.LittleEndian

func appendString(dst []byte, s string) []byte {
	return append(le.AppendUint32(dst, uint32(len(s))), s...)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendParams(dst []byte, params infer.Params) []byte {
	for i := range params {
		p := &params[i]
		dst = appendString(dst, p.Name)
		dst = append(dst, kindNumber(p.Value.Kind))
		switch p.Value.Kind {
		case infer.KindBool:
			dst = appendBool(dst, p.Value.Bool)
		case infer.KindDouble:
			dst = le.AppendUint64(dst, math.Float64bits(p.Value.Double))
		case infer.KindString:
			dst = appendString(dst, p.Value.Str)
		default:
			dst = le.AppendUint64(dst, uint64(p.Value.Int))
		}
	}
	return dst
}

// appendTensor writes what an input and an output have in common.
func appendTensor(dst []byte, name string, d infer.Datatype, shape []int64) []byte {
	dst = append(dst, byte(datatypeNumber(d)), byte(len(shape)), 0, 0)
	dst = appendString(dst, name)
	for _, n := range shape {
		dst = le.AppendUint64(dst, uint64(n))
	}
	return dst
}

func appendSegment(dst []byte, s Segment) []byte {
	return le.AppendUint64(le.AppendUint64(dst, uint64(s.Offset)), uint64(s.Length))
}

// reader walks a descriptor. The first fault stays in err, and all that is read after
// it is zero.
type reader struct {
	src []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = infer.Errorf(infer.Internal, "descriptor: "+format, args...)
	}
	r.src = nil
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.src) {
		r.fail("ends early")
		return nil
	}
	b := r.src[:n]
	r.src = r.src[n:]
	return b
}

func (r *reader) u8() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

// positive reads a 64-bit number that may not be negative.
func (r *reader) positive(what string) int64 {
	n := int64(r.u64())
	if n < 0 {
		r.fail("%s is %d", what, n)
		return 0
	}
	return n
}

func (r *reader) bool() bool {
	b := r.u8()
	if b > 1 {
		r.fail("%d is no bool", b)
	}
	return b == 1
}

// count reads how many elements of at least size bytes follow.
func (r *reader) count(what string, size int) int {
	n := r.u32()
	if int64(n) > int64(len(r.src)/size) {
		r.fail("%d %s in %d bytes", n, what, len(r.src))
		return 0
	}
	return int(n)
}

// string reads into s, which keeps its memory when it is the same text already: the
// names of one model's tensors are the same in every batch.
func (r *reader) string(s *string) {
	n := r.u32()
	if int64(n) > int64(len(r.src)) {
		r.fail("a string of %d bytes, %d are left", n, len(r.src))
		n = 0
	}
	b := r.bytes(int(n))
	if *s != string(b) {
		*s = string(b)
	}
}

func (r *reader) code() infer.Code {
	n := r.u8()
	c, ok := codeFrom(n)
	if n == byte(worker.Code_OK) { // of what did not fail
		return 0
	}
	if !ok {
		r.fail("code %d", n)
	}
	return c
}

// resize is s with n elements, in the same memory where it suffices; elements keep
// what they held, so that what they hang on can be used again.
func resize[T any](s []T, n int) []T {
	if n <= cap(s) {
		return s[:n]
	}
	return append(s[:cap(s)], make([]T, n-cap(s))...)
}

func (r *reader) params(dst infer.Params, n int) infer.Params {
	dst = resize(dst, n)
	for i := range dst {
		p := &dst[i]
		r.string(&p.Name)
		n := r.u8()
		kind, ok := kindFrom(n)
		v := infer.Value{Kind: kind}
		if !ok {
			r.fail("parameter of kind %d", n)
		}
		switch kind {
		case infer.KindBool:
			v.Bool = r.bool()
		case infer.KindInt64, infer.KindUint64:
			v.Int = int64(r.u64())
		case infer.KindDouble:
			v.Double = math.Float64frombits(r.u64())
		case infer.KindString:
			v.Str = p.Value.Str
			r.string(&v.Str)
		}
		p.Value = v
	}
	return dst
}

func (r *reader) tensor(name *string, d *infer.Datatype, shape []int64) []int64 {
	n := r.u8()
	rank := int(r.u8())
	r.bytes(2)
	var ok bool
	if *d, ok = datatypeFrom(n); !ok {
		r.fail("datatype %d", n)
	}
	r.string(name)
	if rank > infer.MaxRank || rank*minDim > len(r.src) {
		r.fail("tensor of %d dimensions in %d bytes", rank, len(r.src))
		rank = 0
	}
	shape = resize(shape, rank)
	for i := range shape {
		shape[i] = r.positive("a dimension")
	}
	return shape
}

func (r *reader) segment() Segment {
	s := Segment{Offset: r.positive("an offset"), Length: r.positive("a length")}
	if s.Length > math.MaxInt64-s.Offset {
		r.fail("a segment of %d bytes at %d", s.Length, s.Offset)
	}
	return s
}

// checkSize says that a tensor's shape asks for the bytes it has. The elements of
// BYTES are whoever reads them's to check.
func (r *reader) checkSize(name string, d infer.Datatype, shape []int64, have int64) {
	if r.err != nil {
		return
	}
	want, err := infer.ByteSize(d, shape)
	switch {
	case err != nil:
		r.fail("tensor '%s': %w", name, err)
	case want >= 0 && want != have:
		r.fail("tensor '%s' of %s %v has %d bytes, want %d", name, d, shape, have, want)
	}
}

func (r *reader) begin(kind byte) {
	if v, k := r.u8(), r.u8(); r.err == nil && (v != version || k != kind) {
		r.fail("version %d, kind %d, want %d and %d", v, k, version, kind)
	}
}

func (r *reader) end() error {
	if len(r.src) > 0 {
		r.fail("%d bytes are left", len(r.src))
	}
	return r.err
}
