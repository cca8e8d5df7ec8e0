package grpcapi

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// maxGathered is the largest field besides raw contents that gather copies to scratch
// memory; a message with a larger one is copied whole into counted memory.
const maxGathered = 256 << 10

// span is a place in the frames of a message.
type span struct {
	frame, offset int
	size          int64
}

// frames walks over a message that lies in several frames.
type frames struct {
	data  mem.BufferSlice
	frame int
	at    []byte // rest of the frame
	off   int    // of at in the frame
	left  int64  // bytes of the message not read yet
}

func newFrames(data mem.BufferSlice) frames {
	r := frames{data: data, frame: -1, left: int64(data.Len())}
	r.fill()
	return r
}

// fill steps over frames that are read up, so that at holds a byte while left > 0.
func (r *frames) fill() {
	for len(r.at) == 0 && r.frame+1 < len(r.data) {
		r.frame++
		r.at, r.off = r.data[r.frame].ReadOnlyData(), 0
	}
}

// varint reads a varint and gives its bytes as they stood.
func (r *frames) varint(buf *[binary.MaxVarintLen64]byte) (uint64, []byte, bool) {
	for n := 0; n < len(buf) && r.left > 0; {
		buf[n] = r.at[0]
		r.skip(1)
		n++
		if buf[n-1] < 0x80 {
			v, got := protowire.ConsumeVarint(buf[:n])
			return v, buf[:n], got == n
		}
	}
	return 0, nil, false
}

// skip passes n bytes, which must be left.
func (r *frames) skip(n int64) {
	r.left -= n
	for {
		step := min(n, int64(len(r.at)))
		r.at, r.off, n = r.at[step:], r.off+int(step), n-step
		r.fill()
		if n == 0 {
			return
		}
	}
}

// appendTo appends n bytes, which must be left, to b.
func (r *frames) appendTo(b []byte, n int64) []byte {
	for n > 0 {
		step := min(n, int64(len(r.at)))
		b = append(b, r.at[:step]...)
		r.skip(step)
		n -= step
	}
	return b
}

// gather takes a message out of its frames: the raw contents, which are nearly all of
// a large message, into one piece of memory from bodies, each at a multiple of
// tensorAlign, and all else to scratch memory, which it returns for request to read.
// whole says that the message has fields which must be read in one piece.
func (d *decoder) gather(c *Call, data mem.BufferSlice, bodies Bodies) (head []byte, whole bool, err error) {
	const rawTag = 7<<3 | uint64(protowire.BytesType)
	r := newFrames(data)
	var buf, lengthBuf [binary.MaxVarintLen64]byte
	total := int64(0)
	for r.left > 0 {
		tag, enc, ok := r.varint(&buf)
		if !ok {
			return nil, false, errMalformed
		}
		switch protowire.Type(tag & 7) {
		case protowire.BytesType:
			l, length, ok := r.varint(&lengthBuf)
			if !ok || l > uint64(r.left) {
				return nil, false, errMalformed
			}
			n := int64(l)
			if tag == rawTag {
				if len(d.spans) == maxInputs {
					return nil, false, tooMany("raw_input_contents", maxInputs)
				}
				d.spans = append(d.spans, span{r.frame, r.off, n})
				total += alignUp(n)
				r.skip(n)
				continue
			}
			if n+int64(len(d.head)) > maxGathered {
				return nil, true, nil
			}
			d.head = append(append(d.head, enc...), length...)
			d.head = r.appendTo(d.head, n)
		case protowire.VarintType:
			_, v, ok := r.varint(&lengthBuf)
			if !ok {
				return nil, false, errMalformed
			}
			d.head = append(append(d.head, enc...), v...)
		default:
			return nil, true, nil // unknown fields of kinds that nobody sends
		}
		if len(d.head) > maxGathered {
			return nil, true, nil
		}
	}
	return d.head, false, d.copyRaws(c, data, total, bodies)
}

// copyRaws copies the spans into memory of total bytes, which becomes the request's.
func (d *decoder) copyRaws(c *Call, data mem.BufferSlice, total int64, bodies Bodies) error {
	if total == 0 {
		for range d.spans {
			d.raws = append(d.raws, nil)
		}
		return nil
	}
	body, err := bodies.Body(total)
	if err != nil {
		return err
	}
	c.Request.Memory = body
	rest := body.Data
	for _, s := range d.spans {
		dst := rest[:s.size:s.size]
		rest = rest[alignUp(s.size):]
		d.raws = append(d.raws, dst)
		for frame, from := s.frame, s.offset; len(dst) > 0; frame, from = frame+1, 0 {
			dst = dst[copy(dst, data[frame].ReadOnlyData()[from:]):]
		}
	}
	return nil
}

// decodeWhole copies a message as it stands and reads it there.
func (d *decoder) decodeWhole(c *Call, data mem.BufferSlice, bodies Bodies) error {
	body, err := bodies.Body(int64(data.Len()))
	if err != nil {
		return err
	}
	c.Request.Memory = body
	data.CopyTo(body.Data)
	return d.request(c, body.Data)
}

// frame is a received frame that a request's tensors are views on.
type frame struct {
	infer.Buffer
	under mem.Buffer
	done  func(*infer.Buffer) // back to the pool, made once
}

// keep makes data the request's memory; plain garbage-collected frames need no count.
func (s *Service) keep(c *Call, data mem.Buffer) {
	if _, plain := data.(mem.SliceBuffer); plain {
		return
	}
	f, ok := s.frames.Get().(*frame)
	if !ok {
		f = &frame{}
		f.done = func(b *infer.Buffer) {
			b.Data = nil
			under := f.under
			f.under = nil
			under.Free()
			s.frames.Put(f)
		}
	}
	data.Ref()
	f.under = data
	f.Reset(data.ReadOnlyData(), f.done)
	c.Request.Memory = &f.Buffer
}
