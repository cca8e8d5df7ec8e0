package httpapi

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/sluice-serve/sluice/infer"
)

const (
	// firstStep is the most memory taken on a client's word alone.
	firstStep = 1 << 20
	// growth is how many times what has arrived the next step may be, where the body's
	// length was announced; blindGrowth where it was not.
	growth      = 16
	blindGrowth = 4
	// scarceStep is firstStep where memory is scarce; what then comes grows by blindGrowth.
	scarceStep = 16 << 10
	// align is where tensors begin in a request's memory.
	align = 64
)

// bodyReader reads one call's body.
type bodyReader struct {
	ctx    context.Context
	from   io.Reader
	length int64 // bytes as announced; -1: unknown
	read   int64
	limit  int64 // most bytes of a body of unknown length
	model  string
}

// fill reads len(p) bytes. It returns how many came; fewer with an error, io.EOF when
// the body has ended.
func (b *bodyReader) fill(p []byte) (int, error) {
	n, err := io.ReadFull(b.from, p)
	b.read += int64(n)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

// fault says why the body could not be read.
func (b *bodyReader) fault(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // net/http ends the context too
		return infer.Errorf(infer.InvalidArg, "the request body stopped arriving after %d bytes", b.read)
	case b.ctx.Err() != nil:
		return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the client closed the request before its body had arrived")
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		if b.length >= 0 {
			return infer.Errorf(infer.InvalidArg, "the request body ended after %d of %d bytes", b.read, b.length)
		}
		return infer.Errorf(infer.InvalidArg, "the request body ended after %d bytes", b.read)
	}
	var e *infer.Error
	if errors.As(err, &e) {
		return err
	}
	return infer.Errorf(infer.InvalidArg, "the request body could not be read after %d bytes", b.read)
}

// prefix reads n bytes of JSON, or with n -1 all there are up to most, into dst, which
// grows with what arrives.
func (b *bodyReader) prefix(dst []byte, n, most int64) ([]byte, error) {
	dst = dst[:0]
	if n > most {
		return dst, jsonTooLarge(n, most)
	}
	want := n
	if n < 0 {
		want = most + 1
	}
	for int64(len(dst)) < want {
		if len(dst) == cap(dst) {
			grown := make([]byte, len(dst), min(max(int64(cap(dst))*4, 8<<10), want))
			copy(grown, dst)
			dst = grown
		}
		end := min(int64(cap(dst)), want)
		got, err := b.fill(dst[len(dst):end])
		dst = dst[:len(dst)+got]
		if err == io.EOF && n < 0 {
			return dst, nil
		}
		if err != nil {
			return dst, b.fault(err)
		}
	}
	if n < 0 {
		return dst, jsonTooLarge(int64(len(dst)), most)
	}
	return dst, nil
}

// jsonTooLarge is the original's text of 2.7x.
func jsonTooLarge(n, most int64) error {
	return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge, "request JSON size of %d bytes exceeds the maximum allowed "+
		"input size of %d bytes. Use --http-max-input-size to increase the limit.", n, most)
}

// expanded refuses inputs whose data in JSON are more bytes as tensors than a body may be:
// "0," may stand for eight.
// Source: the original's check and text of 2.7x.
func (d *form) expanded(most int64) error {
	for i := range d.inputs {
		in := &d.inputs[i]
		if n := int64(in.data.to - in.data.from); n > most {
			return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge, "JSON input '%s' has a byte_size (%d bytes) that exceeds the maximum "+
				"allowed value of %d bytes. Use --http-max-input-size to increase the limit.", d.text[in.name.from:in.name.to], n, most)
		}
	}
	return nil
}

// bodyTooLarge is the same for bytes that are not JSON.
func bodyTooLarge(n, most int64) error {
	return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge,
		"request body size of %d bytes exceeds the maximum allowed size of %d bytes", n, most)
}

// ended checks that nothing follows in a body of unknown length.
func (b *bodyReader) ended() error {
	if b.length >= 0 {
		return nil
	}
	var one [1]byte
	n, err := b.fill(one[:])
	if n > 0 {
		return b.additional()
	}
	if err != io.EOF {
		return b.fault(err)
	}
	return nil
}

func (b *bodyReader) additional() error {
	return infer.Errorf(infer.InvalidArg, "unexpected additional input data for model '%s'", b.model)
}

func (b *bodyReader) missing(input string, bytes int64) error {
	return infer.Errorf(infer.InvalidArg, "unexpected size for input '%s', expecting %d additional bytes for model '%s'",
		input, bytes, b.model)
}

// intake is the memory that a body is read into. It takes steps: what is held is at
// most firstStep or growth times what has arrived.
type intake struct {
	bodies Bodies
	buf    *infer.Buffer
	growth int64
	total  int64 // bytes wanted in all
	at     int64 // bytes filled
}

// room makes memory of at least at+1 bytes and returns the free part up to end.
func (t *intake) room(end int64) ([]byte, error) {
	if t.buf == nil || t.at == int64(len(t.buf.Data)) {
		size := min(t.total, max(firstStep, t.at*t.growth))
		if size > scarceStep && t.bodies.Scarce() {
			size = min(t.total, max(scarceStep, t.at*blindGrowth))
		}
		if t.at > 0 && size > t.bodies.Most()/2 {
			t.moved()
		}
		buf, err := t.bodies.Body(size)
		if err != nil && size > 2*t.at && t.at > 0 { // what is left may do for a smaller step
			buf, err = t.bodies.Body(2 * t.at)
		}
		if err != nil && t.at > 0 && t.moved() {
			buf, err = t.bodies.Body(size)
		}
		if err != nil {
			return nil, err
		}
		if t.buf != nil {
			copy(buf.Data, t.buf.Data[:t.at])
			t.buf.Release()
		}
		t.buf = buf
	}
	return t.buf.Data[t.at:min(end, int64(len(t.buf.Data)))], nil
}

// moved puts what has come elsewhere, where it is not in the way of a larger piece of memory: two
// steps of a request that takes more than half of all memory have no room beside one another.
func (t *intake) moved() bool {
	buf, err := t.bodies.Aside(t.buf.Data[:t.at])
	if err != nil {
		return false // memory for the larger piece is not there either
	}
	t.buf.Release()
	t.buf = buf
	return true
}

// pad moves on to offset without content.
func (t *intake) pad(offset int64) error {
	for t.at < offset {
		p, err := t.room(offset)
		if err != nil {
			return err
		}
		t.at += int64(len(p))
	}
	return nil
}

// put copies data.
func (t *intake) put(data []byte) error {
	for len(data) > 0 {
		p, err := t.room(t.at + int64(len(data)))
		if err != nil {
			return err
		}
		n := copy(p, data)
		data = data[n:]
		t.at += int64(n)
	}
	return nil
}

// take reads up to offset end from the body.
func (t *intake) take(b *bodyReader, end int64) error {
	for t.at < end {
		p, err := t.room(end)
		if err != nil {
			return err
		}
		n, err := b.fill(p)
		t.at += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// drop gives the memory back after a fault.
func (t *intake) drop() {
	t.buf.Release()
	t.buf = nil
}

// arrange gives each input its offset.
func (d *form) arrange() {
	d.total = 0
	for i := range d.inputs {
		in := &d.inputs[i]
		in.offset = (d.total + align - 1) &^ (align - 1)
		d.total = in.offset + in.bytes() // what is too much for it is too much for any body
	}
}

// bytes are those of the input's data in the request's memory.
func (in *input) bytes() int64 {
	if in.source == fromBinary {
		return in.size
	}
	return int64(in.data.to - in.data.from)
}

// announced holds the sizes of binary inputs against what is left of the body, before
// anything is allocated.
func (d *form) announced(b *bodyReader) error {
	left := b.length - b.read
	if b.length < 0 {
		left = b.limit - b.read
	}
	for i := range d.inputs {
		in := &d.inputs[i]
		if in.source != fromBinary {
			continue
		}
		if in.size > left {
			if b.length < 0 {
				return bodyTooLarge(b.read+in.size, b.limit)
			}
			return b.missing(string(d.text[in.name.from:in.name.to]), in.size-left)
		}
		left -= in.size
	}
	if b.length >= 0 && left > 0 {
		return b.additional()
	}
	return nil
}

// tensors reads the binary inputs and copies those from JSON beside them; tensors and
// inputs go in step. The returned buffer is the caller's, nil for no bytes at all.
func (d *form) tensors(b *bodyReader, bodies Bodies, tensors []infer.Tensor) (*infer.Buffer, error) {
	if err := d.announced(b); err != nil {
		return nil, err
	}
	if err := bodies.Fits(d.total); err != nil {
		return nil, err
	}
	t := intake{bodies: bodies, growth: growth, total: d.total}
	for i := range d.inputs {
		if err := d.place(&t, b, &d.inputs[i]); err != nil {
			t.drop()
			return nil, err
		}
	}
	if err := b.ended(); err != nil {
		t.drop()
		return nil, err
	}
	for i := range d.inputs {
		in := &d.inputs[i]
		if size := in.bytes(); size > 0 {
			tensors[i].Data = t.buf.Data[in.offset : in.offset+size : in.offset+size]
		}
	}
	return t.buf, nil
}

func (d *form) place(t *intake, b *bodyReader, in *input) error {
	if in.source != fromBinary {
		if in.data.from == in.data.to {
			return nil
		}
		if err := t.pad(in.offset); err != nil {
			return err
		}
		return t.put(d.scratch[in.data.from:in.data.to])
	}
	if in.size == 0 {
		return nil
	}
	if err := t.pad(in.offset); err != nil {
		return err
	}
	end := in.offset + in.size
	err := t.take(b, end)
	if err == io.EOF && b.length < 0 {
		return b.missing(string(d.text[in.name.from:in.name.to]), end-t.at)
	}
	if err != nil {
		return b.fault(err)
	}
	return nil
}
