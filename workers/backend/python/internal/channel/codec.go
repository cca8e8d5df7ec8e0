package channel

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// Kind is what a frame is.
type Kind uint8

// The kinds of frames.
const (
	Load       Kind = 1
	Complete   Kind = 2
	Initialize Kind = 3
	Execute    Kind = 4
	Finalize   Kind = 6

	Reply Kind = 16

	Hello       Kind = 32
	Loaded      Kind = 33
	Completed   Kind = 34
	Initialized Kind = 35
	Result      Kind = 36
	Readiness   Kind = 37
	Finalized   Kind = 38
	Failed      Kind = 39

	Part       Kind = 48
	Drop       Kind = 49
	Need       Kind = 50
	Give       Kind = 51
	Call       Kind = 52
	CallCancel Kind = 53
	Control    Kind = 54
	Log        Kind = 55
	Metric     Kind = 56
	Taken      Kind = 57
)

// inlineMost is how many bytes of tensors a frame has in itself, and of one at most.
const (
	inlineMost   = 64 << 10
	inlineTensor = 32 << 10
)

// Encoder puts the body of a frame together. Its zero value is ready; Reset begins another one.
type Encoder struct {
	buf    []byte
	inline []inlined
	size   int // of inline
}

// inlined is a tensor's data that is to follow the body, and where its segment stands.
type inlined struct {
	at   int
	data []byte
}

// Reset begins another body.
func (e *Encoder) Reset() {
	clear(e.inline)
	e.buf, e.inline, e.size = e.buf[:0], e.inline[:0], 0
}

// U8 appends a number.
func (e *Encoder) U8(v uint8) { e.buf = append(e.buf, v) }

// U16 appends a number.
func (e *Encoder) U16(v uint16) { e.buf = binary.LittleEndian.AppendUint16(e.buf, v) }

// U32 appends a number.
func (e *Encoder) U32(v uint32) { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }

// U64 appends a number.
func (e *Encoder) U64(v uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }

// F64 appends a number.
func (e *Encoder) F64(v float64) { e.U64(math.Float64bits(v)) }

// Mark16 appends a number that Count16 counts up.
func (e *Encoder) Mark16() (at int) {
	e.U16(0)
	return len(e.buf) - 2
}

// Count16 adds one to the number that Mark16 appended.
func (e *Encoder) Count16(at int) {
	binary.LittleEndian.PutUint16(e.buf[at:], binary.LittleEndian.Uint16(e.buf[at:])+1)
}

// String appends a string.
func (e *Encoder) String(s string) {
	e.U32(uint32(len(s)))
	e.buf = append(e.buf, s...)
}

// Segment appends a segment.
func (e *Encoder) Segment(s Segment) {
	e.U8(s.Area)
	e.U64(s.Offset)
	e.U64(s.Length)
}

// Inlines says that so many bytes of a tensor go into the frame.
func (e *Encoder) Inlines(n int) bool { return n <= inlineTensor && e.size+n <= inlineMost }

// Tensor appends a tensor whose data lies in a segment.
func (e *Encoder) Tensor(t *infer.Tensor, s Segment) {
	e.tensor(t)
	e.Segment(s)
}

// TensorInline appends a tensor whose data follows in the frame: it is read until Body.
func (e *Encoder) TensorInline(t *infer.Tensor) {
	e.tensor(t)
	e.inline = append(e.inline, inlined{at: len(e.buf), data: t.Data})
	e.size = align(e.size + len(t.Data))
	e.Segment(Segment{Length: uint64(len(t.Data))})
}

func (e *Encoder) tensor(t *infer.Tensor) {
	e.U8(uint8(t.Datatype))
	e.U8(uint8(len(t.Shape)))
	e.U16(0)
	for _, d := range t.Shape {
		e.U64(uint64(d))
	}
	e.String(t.Name)
}

// Body is the body, valid until Reset.
func (e *Encoder) Body() []byte {
	for _, in := range e.inline {
		for len(e.buf)%8 != 0 { // the header's size is a multiple of 8
			e.buf = append(e.buf, 0)
		}
		binary.LittleEndian.PutUint64(e.buf[in.at+1:], uint64(HeaderSize+len(e.buf)))
		e.buf = append(e.buf, in.data...)
	}
	clear(e.inline)
	e.inline = e.inline[:0]
	return e.buf
}

// Decoder reads the body of a frame. After the first error, which Err tells, all it reads is zero.
type Decoder struct {
	body  []byte
	at    int
	err   error
	names map[string]string // texts that are made once
}

// NewDecoder reads a body. Texts that names has are not made anew; it may be nil.
func NewDecoder(body []byte, names map[string]string) Decoder {
	return Decoder{body: body, names: names}
}

// Err is ErrCorrupt, once something was not there.
func (d *Decoder) Err() error { return d.err }

// Rest is how many bytes follow.
func (d *Decoder) Rest() int { return len(d.body) - d.at }

// Fail notes that the body can't be read.
func (d *Decoder) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	}
	d.at = len(d.body)
}

func (d *Decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.body)-d.at {
		d.Fail("a body of %d bytes ends early", len(d.body))
		return nil
	}
	b := d.body[d.at : d.at+n : d.at+n]
	d.at += n
	return b
}

// U8 reads a number.
func (d *Decoder) U8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// U16 reads a number.
func (d *Decoder) U16() uint16 {
	if b := d.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 reads a number.
func (d *Decoder) U32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 reads a number.
func (d *Decoder) U64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// F64 reads a number.
func (d *Decoder) F64() float64 { return math.Float64frombits(d.U64()) }

// Count reads how many things follow that take at least so many bytes each.
func (d *Decoder) Count(n uint32, least int) int {
	if int64(n)*int64(least) > int64(d.Rest()) {
		d.Fail("%d things of at least %d bytes in %d", n, least, d.Rest())
		return 0
	}
	return int(n)
}

// String reads a string, which is the caller's.
func (d *Decoder) String() string {
	b := d.take(int(d.U32()))
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	return string(b)
}

// Segment reads a segment.
func (d *Decoder) Segment() Segment { return Segment{Area: d.U8(), Offset: d.U64(), Length: d.U64()} }

// Tensor is a tensor of a frame. Data is set where it lies in the frame, and is valid as long as that.
type Tensor struct {
	infer.Tensor
	Segment Segment
}

// minTensor is how many bytes a tensor takes at least.
const minTensor = 4 + 4 + 17

// Tensor reads a tensor into t, whose shape is used again.
func (d *Decoder) Tensor(t *Tensor) {
	datatype, rank := d.U8(), int(d.U8())
	d.U16()
	if rank > infer.MaxRank {
		d.Fail("a tensor of %d dimensions", rank)
	}
	shape := t.Shape[:0]
	for i := 0; i < rank && d.err == nil; i++ {
		shape = append(shape, int64(d.U64()))
	}
	*t = Tensor{Tensor: infer.Tensor{Name: d.String(), Shape: shape}, Segment: d.Segment()}
	if t.Datatype = infer.Datatype(datatype); datatype == 0 || t.Datatype > infer.BF16 {
		d.Fail("a tensor of datatype %d", datatype)
	}
	if d.err != nil || t.Segment.Area != InFrame {
		return
	}
	at, n := t.Segment.Offset, t.Segment.Length
	end := uint64(HeaderSize + len(d.body))
	if n > 0 && (at < HeaderSize || at > end || n > end-at) {
		d.Fail("a tensor of %d bytes at %d in a frame of %d", n, at, end)
		return
	}
	t.Data = []byte{}
	if n > 0 {
		t.Data = d.body[at-HeaderSize:][:n:n]
	}
}

// Response is an answer to one request.
type Response struct {
	Code    uint8 // 0: no error
	Message string
	Params  string // JSON object; "": none
	Outputs []Tensor
}

// Response reads an answer into r, whose memory is used again.
func (d *Decoder) Response(r *Response) {
	r.Code, r.Message, r.Params = d.U8(), d.String(), d.String()
	n := d.Count(uint32(d.U16()), minTensor)
	if cap(r.Outputs) < n {
		r.Outputs = append(r.Outputs[:cap(r.Outputs)], make([]Tensor, n-cap(r.Outputs))...)
	}
	r.Outputs = r.Outputs[:n]
	for i := range r.Outputs {
		d.Tensor(&r.Outputs[i])
	}
}

// Clone is a copy that has its own memory.
func (r *Response) Clone() Response {
	c := *r
	c.Outputs = make([]Tensor, len(r.Outputs))
	for i, t := range r.Outputs {
		t.Shape = slices.Clone(t.Shape)
		t.Data = slices.Clone(t.Data)
		c.Outputs[i] = t
	}
	return c
}
