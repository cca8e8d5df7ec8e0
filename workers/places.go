package workers

import (
	"slices"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/region"
	"github.com/sluice-serve/sluice/workers/wire"
)

// use is a region that a request of a batch names; the execution holds a reference.
type use struct {
	request int
	region  *region.Region
}

// part is a piece of an input that has to be gathered: bytes, or a range of a region.
type part struct {
	input, request int
	data           []byte
	region         *region.Region
	off, n         int64
}

// preparePlaces looks after the destinations of outputs.
func (x *execution) preparePlaces() {
	x.placed, x.resident = false, false
	for i := range x.requests {
		w := x.requests[i].wire
		for _, s := range w.Places {
			slot, off, ok := s.Region()
			if !ok {
				continue
			}
			if s == wire.Resident {
				x.resident = true
				continue
			}
			x.placed = true
			r := x.use(i, slot)
			if r == nil {
				x.lose(i, noRegion(slot))
			} else if err := r.Check(off, s.Length); err != nil {
				x.lose(i, err)
			}
		}
	}
}

// use is the region of a slot for a request; nil: there is none.
func (x *execution) use(request int, slot uint32) *region.Region {
	if r := x.used(request, slot); r != nil {
		return r
	}
	r := x.inst.connection.regions.Acquire(slot)
	if r != nil {
		x.uses = append(x.uses, use{request, r})
	}
	return r
}

func (x *execution) used(request int, slot uint32) *region.Region {
	for k := range x.uses {
		if u := &x.uses[k]; u.request == request && u.region.Slot() == slot {
			return u.region
		}
	}
	return nil
}

// lose fails a request whose memory is of no use. What its backend answers to it after
// that is dropped.
func (x *execution) lose(i int, err error) {
	if !x.requests[i].answered {
		x.fail(i, err)
		x.requests[i].lost = true
	}
}

// checkRegions fails the requests whose memory is not there any more.
func (x *execution) checkRegions() { x.checkRegionsOf(noRequest) }

// checkRegionsOf is checkRegions for one request.
func (x *execution) checkRegionsOf(request int) {
	for k := range x.uses {
		u := &x.uses[k]
		if x.requests[u.request].answered || request != noRequest && request != u.request {
			continue
		}
		if err := u.region.Err(); err != nil {
			x.lose(u.request, err)
		}
	}
}

func (x *execution) releaseRegions() {
	for k := range x.uses {
		x.uses[k].region.Release()
		x.uses[k].region = nil
	}
	x.uses = x.uses[:0]
	clear(x.parts)
	x.parts = x.parts[:0]
	clear(x.roomParts)
	x.roomParts = x.roomParts[:0]
	clear(x.inPlace)
	x.inPlace = x.inPlace[:0]
}

func inRegion(in *wire.Input) bool {
	return slices.ContainsFunc(in.Segments, func(s wire.Segment) bool {
		_, _, ok := s.Region()
		return ok
	})
}

// placedInput is inputData for an input with segments in regions. Where data is nil,
// x.parts has what is to be gathered.
func (x *execution) placedInput(i, k int) (data []byte, gather int64, err error) {
	in := &x.batch.Inputs[i]
	first := len(x.parts)
	parts, gather, err := x.inputParts(i, k)
	if err != nil {
		return nil, 0, err
	}
	var placed int64 // bytes of regions to be copied
	for j, s := range in.Segments {
		if _, _, ok := s.Region(); ok {
			placed += parts[j].n
		}
	}
	x.parts = append(x.parts, parts...)
	if p := &x.parts[first]; len(in.Segments) == 1 {
		if p.data != nil && isAligned(p.data, in.Datatype) {
			data = p.data
		} else if p.region != nil && (in.Datatype.IsFloat() || p.region.Frozen()) {
			data = p.region.InPlace(p.off, p.n)
		}
		if data != nil && isAligned(data, in.Datatype) {
			if p.region != nil {
				x.inPlace = append(x.inPlace, *p)
			}
			x.parts = x.parts[:first]
			return data, 0, nil
		}
	}
	if most := x.mostCopied(); placed/int64(len(in.Segments)) > most {
		return nil, 0, errCopied(in.Name, placed, most)
	}
	return nil, gather, nil
}

// inputParts are the pieces of an input, one for each segment, and their bytes. They are valid
// until the next call.
func (x *execution) inputParts(i, k int) (parts []part, size int64, err error) {
	in := &x.batch.Inputs[i]
	at := cursor{x: x, in: in, request: -1}
	parts = x.roomParts[:0]
	for j, s := range in.Segments {
		p := part{input: i}
		if slot, off, ok := s.Region(); ok {
			p, err = x.regionPart(&at, slot, off, s.Length)
		} else if p.data, err = x.inst.transport.view(x, k+j, s); err == nil {
			p.n = s.Length
			err = at.skip(p.data)
		}
		if err != nil {
			return nil, 0, err
		}
		p.input = i
		parts = append(parts, p)
		size += p.n
	}
	x.roomParts = parts
	if want, err := infer.ByteSize(in.Datatype, in.Shape); err != nil || in.Datatype != infer.Bytes && want != size {
		return nil, 0, infer.Errorf(infer.Internal, "input '%s' of %s %v has %d bytes", in.Name, in.Datatype, in.Shape, size)
	}
	return parts, size, nil
}

// mostCopied bounds the bytes of a region that are copied for one request's input: a
// client's file may have any size and cost nothing. Gateways send large ones another way
// (gateway/repository), but for floats at odd addresses and those on a device.
func (x *execution) mostCopied() int64 { return int64(x.inst.worker.config.MaxMessage) }

func errCopied(input string, n, most int64) error {
	return infer.Errorf(infer.InvalidArg, "input '%s' of %d bytes can't be read where it lies, and is too large to be copied: the most is %d", input, n, most)
}

// maxLost bounds the elements of BYTES that stand in for those of a request that is lost.
const maxLost = 16 << 20

// regionPart is the next request's part of an input. Trouble with its memory is that
// request's alone: others get their answers, beside zeros.
func (x *execution) regionPart(at *cursor, slot uint32, off, n int64) (part, error) {
	i, elements, err := at.next()
	if err != nil {
		return part{}, err
	}
	p := part{request: i, off: off, n: n}
	if size := at.in.Datatype.Size(); at.in.Datatype != infer.Bytes && (size == 0 || n%size != 0 || n/size != elements) {
		return p, infer.Errorf(infer.Internal, "input '%s' of request %d has %d elements of %s, and %d bytes in a shared memory region",
			at.in.Name, i, elements, at.in.Datatype, n)
	}
	p.region = x.use(i, slot)
	if p.region == nil {
		x.lose(i, noRegion(slot))
	} else if err := p.region.Check(off, n); err != nil {
		x.lose(i, err)
		p.region = nil
	}
	if at.in.Datatype != infer.Bytes {
		return p, nil
	}
	if most := x.mostCopied(); p.region != nil && n > most {
		x.lose(i, errCopied(at.in.Name, n, most))
		p.region = nil
	}
	// Lengths are looked at more than once: they must not change, and they must fit.
	if p.region != nil {
		p.data = make([]byte, n)
		if err := x.stringsOf(&p, at.in.Name, elements); err != nil {
			x.lose(i, err)
			p.region = nil
		}
	}
	if p.region == nil {
		if elements > maxLost {
			return p, infer.Errorf(infer.InvalidArg, "input '%s' of %d elements can't be read", at.in.Name, elements)
		}
		p.data = make([]byte, 4*elements)
	}
	p.region, p.n = nil, int64(len(p.data))
	return p, nil
}

// stringsOf copies BYTES out of their region and counts them.
func (x *execution) stringsOf(p *part, name string, want int64) error {
	if err := p.region.Read(p.data, p.off); err != nil {
		return err
	}
	if err := p.region.Err(); err != nil {
		return err
	}
	q := infer.Request{ID: x.requests[p.request].ID()}
	return infer.CheckBytes(q.Prefix(), name, x.inst.modelName, want, p.data)
}

// gatherParts copies the parts of input i to the start of to, and gives back how many
// bytes and how many parts those were.
func (x *execution) gatherParts(to []byte, parts []part, i int) (n, taken int) {
	for taken < len(parts) && parts[taken].input == i {
		p := &parts[taken]
		dst := to[n : n+int(p.n)]
		switch {
		case p.data != nil:
			copy(dst, p.data)
		case p.region == nil || x.requests[p.request].lost:
			clear(dst)
		default:
			if err := p.region.Read(dst, p.off); err != nil {
				clear(dst)
				x.lose(p.request, err)
			}
		}
		n += int(p.n)
		taken++
	}
	return n, taken
}

// cursor walks an input's segments and knows whose they are: one in a region is all of one
// request's tensor, others have the rows of any number of requests that are together.
type cursor struct {
	x       *execution
	in      *wire.Input
	request int
	left    int64 // elements of that request that are still to come
}

// elements is how many request i has.
func (c *cursor) elements(i int) (int64, error) {
	switch {
	case c.in.Layout == infer.Ragged:
		return infer.Elements(c.in.Extents[i])
	case len(c.x.requests) == 1:
		return infer.Elements(c.in.Shape)
	case c.in.Layout != infer.ByRow || len(c.in.Shape) == 0 || c.in.Shape[0] != int64(c.x.batch.Rows):
		return 0, infer.Errorf(infer.Internal, "input '%s' has no rows, and lies in shared memory regions", c.in.Name)
	}
	row, err := infer.Elements(c.in.Shape[1:])
	return row * int64(c.x.requests[i].wire.Rows), err
}

// next is the request whose tensor comes next, and how many elements that has.
func (c *cursor) next() (request int, elements int64, err error) {
	for c.left == 0 && c.request < len(c.x.requests)-1 {
		c.request++
		if c.left, err = c.elements(c.request); err != nil {
			return 0, 0, err
		}
	}
	elements, c.left = c.left, 0
	return c.request, elements, nil
}

// skip goes on behind the elements of data, which the gateway has checked.
func (c *cursor) skip(data []byte) error {
	if len(c.x.requests) == 1 {
		return nil
	}
	var n int64
	if size := c.in.Datatype.Size(); size > 0 {
		n = int64(len(data)) / size
	} else {
		var err error
		if n, err = infer.CountBytesElements(data); err != nil {
			return infer.Errorf(infer.Internal, "input '%s': %w", c.in.Name, err)
		}
	}
	for n > 0 {
		i, elements, err := c.next()
		if err != nil {
			return err
		}
		if elements == 0 {
			return infer.Errorf(infer.Internal, "input '%s' has more elements than its requests", c.in.Name)
		}
		c.request, c.left = i, elements-min(elements, n)
		n -= min(elements, n)
	}
	return nil
}

// target is where an output of request i goes.
type target struct {
	region *region.Region
	off    int64
	room   int64
}

func (x *execution) target(i int, name string) (t target, ok bool) {
	w := x.requests[i].wire
	for k := range w.Places {
		if w.Outputs[k] != name {
			continue
		}
		slot, off, ok := w.Places[k].Region()
		if !ok {
			return target{}, false
		}
		r := x.used(i, slot)
		return target{region: r, off: off, room: w.Places[k].Length}, r != nil
	}
	return target{}, false
}

// fits says whether an output of n bytes has room.
// Source: ResponseAlloc of the original's front ends.
func (t *target) fits(name string, n int64) error {
	if n <= t.room {
		return nil
	}
	return infer.Errorf(infer.Internal, "shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
		name, t.room, n)
}

// AllocOutput fits backend.Batch.
func (x *execution) AllocOutput(name string, n int64) ([]byte, error) {
	if i := x.only(); i >= 0 && x.placed && n >= 0 && x.kept == nil {
		if t, ok := x.target(i, name); ok {
			if err := t.fits(name, n); err != nil {
				return nil, err
			}
			if mem := t.region.Room(t.off, n); mem != nil && isAligned(mem, infer.Int64) && x.isFree(i, name, &t, n) {
				return mem, nil
			}
		}
	}
	return x.Alloc(n)
}

// isFree says of the one request that the backend sees that the first n bytes of an output's target are
// neither of an input that is read in place nor of another output. Others are written when
// the model has ended: it has no use for inputs that change while it reads them.
func (x *execution) isFree(request int, name string, t *target, n int64) bool {
	for k := range x.inPlace {
		if p := &x.inPlace[k]; t.region.Overlaps(t.off, n, p.region, p.off, p.n) {
			return false
		}
	}
	w := x.requests[request].wire
	for k := range w.Places {
		slot, off, ok := w.Places[k].Region()
		if !ok || w.Outputs[k] == name {
			continue
		}
		if r := x.used(request, slot); r != nil && t.region.Overlaps(t.off, n, r, off, w.Places[k].Length) {
			return false
		}
	}
	return true
}

// store writes an output to where its request wants it; in says that it does. An error is
// the request's.
func (x *execution) store(i int, o *infer.Tensor) (s wire.Segment, in bool, err error) {
	t, ok := x.target(i, o.Name)
	if !ok {
		return s, false, nil
	}
	n := int64(len(o.Data))
	if err := t.fits(o.Name, n); err != nil {
		return s, false, err
	}
	mem := t.region.Room(t.off, n)
	if n > 0 && (mem == nil || unsafe.SliceData(mem) != unsafe.SliceData(o.Data)) {
		if err := t.region.Write(t.off, o.Data); err != nil {
			return s, false, err
		}
	}
	return wire.InRegion(t.region.Slot(), t.off, n), true, nil
}
