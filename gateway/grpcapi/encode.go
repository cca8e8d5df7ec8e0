package grpcapi

import (
	"math"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// byReference is the size from which an output goes to the transport where it lies;
// smaller ones are copied into the header's memory, which costs less than counting.
const byReference = 8 << 10

// output lends an output's bytes to the transport and gives its reference to the
// response's memory back after they are written. To mem.NewBuffer it is the pool that
// they came from.
type output struct {
	data   []byte
	memory *infer.Buffer
	in     *Service
}

// Get is never called: nothing is allocated here.
func (o *output) Get(int) *[]byte { panic("grpcapi: memory asked of an output") }

// Put ends the loan.
func (o *output) Put(*[]byte) {
	memory := o.memory
	o.memory, o.data = nil, nil
	o.in.outputs.Put(o)
	memory.Release()
}

// maxRoom is the size of messages for which a call keeps memory.
const maxRoom = 1 << 10

// encode writes r as a ModelInferResponse into c.reply, and takes over r's memory.
// Source: message ModelInferResponse, proto/inference/grpc_service.proto. Outputs are
// always raw, as in the original.
func (s *Service) encode(c *Call, r *infer.Response) error {
	defer r.Memory.Release()
	if err := checkResponse(r); err != nil {
		return err
	}
	n := headSize(r)
	head, pooled := c.small[:0], rented{}
	switch {
	case n <= len(c.small):
	case n <= maxRoom && c.stream != nil: // whose memory lives longer than one call
		if n > cap(c.room) {
			c.room = make([]byte, 0, maxRoom)
		}
		head = c.room[:0]
	case mem.IsBelowBufferPoolingThreshold(n):
		head = make([]byte, 0, n)
	default:
		var err error
		if pooled, err = s.rent(n); err != nil {
			return err
		}
		head = (*pooled.data)[:0]
	}
	head = appendHead(head, r)
	var cutMemory [4]cut
	head, cuts := appendRaws(head, r, cutMemory[:0])
	c.reply = s.join(c, head, pooled, cuts, r)
	return nil
}

// rented is memory of a pool. The zero value is none.
type rented struct {
	data *[]byte
	pool mem.BufferPool
}

// rent gives memory for n bytes of a message, which is counted from infer.CountFrom bytes on until its pool has it back.
func (s *Service) rent(n int) (rented, error) {
	if n < infer.CountFrom {
		return rented{s.heads.Under.Get(n), s.heads.Under}, nil
	}
	b := s.heads.Get(n)
	if err := s.heads.Budget.Take(int64(cap(*b))); err != nil {
		s.heads.Under.Put(b)
		return rented{}, err
	}
	return rented{b, s.heads}, nil
}

// cut is a place in the head where an output's bytes stand in the message.
type cut struct {
	at     int
	output int
}

// join makes the message: pieces of head and, between them, outputs where they lie.
func (s *Service) join(c *Call, head []byte, pooled rented, cuts []cut, r *infer.Response) mem.BufferSlice {
	parts, from := c.parts[:0], 0
	var whole mem.Buffer
	if pooled.data != nil {
		*pooled.data = head
		whole = mem.NewBuffer(pooled.data, pooled.pool)
		defer whole.Free() // the pieces hold references of their own
	}
	piece := func(to int) mem.Buffer {
		switch {
		case whole != nil:
			return whole.Slice(from, to)
		case from == 0:
			c.tiny = head[:to:to]
			return &c.tiny
		}
		return mem.SliceBuffer(head[from:to:to])
	}
	for _, cut := range cuts {
		parts = append(parts, piece(cut.at), s.lend(r.Outputs[cut.output].Data, r.Memory))
		from = cut.at
	}
	if from < len(head) || len(parts) == 0 {
		parts = append(parts, piece(len(head)))
	}
	return parts
}

// lend makes a buffer of an output that holds a reference to its memory.
func (s *Service) lend(data []byte, memory *infer.Buffer) mem.Buffer {
	if memory == nil {
		return mem.SliceBuffer(data)
	}
	o, ok := s.outputs.Get().(*output)
	if !ok {
		o = &output{in: s}
	}
	memory.Retain()
	o.data, o.memory = data, memory
	return mem.NewBuffer(&o.data, o)
}

// checkResponse holds back what a client could not read: outputs whose bytes don't fill
// their shape, and texts of a model that are not UTF-8, as proto3 strings must be.
func checkResponse(r *infer.Response) error {
	for i := range r.Outputs {
		t := &r.Outputs[i]
		want, err := infer.ByteSize(t.Datatype, t.Shape)
		if !t.Place.IsZero() {
			want = 0 // who wrote it has checked it
		}
		switch {
		case err != nil:
			return infer.Errorf(infer.Internal, "output '%s': %w", t.Name, err)
		case want >= 0 && want != int64(len(t.Data)):
			return infer.Errorf(infer.Internal, "output '%s' of shape %v has %d bytes, want %d", t.Name, t.Shape, len(t.Data), want)
		case !utf8.ValidString(t.Name):
			return infer.Errorf(infer.Internal, "output name %q is not UTF-8", t.Name)
		}
	}
	for i := range r.Params {
		if p := &r.Params[i]; !utf8.ValidString(p.Name) || !utf8.ValidString(p.Value.Str) {
			return infer.Errorf(infer.Internal, "response parameter %q is not UTF-8", p.Name)
		}
	}
	return nil
}

// sizeLen is the size of a length-delimited field with a one-byte tag.
func sizeLen(n int) int { return 1 + protowire.SizeBytes(n) }

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return sizeLen(len(s))
}

func appendLen(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(append(b, byte(num)<<3|byte(protowire.BytesType)), uint64(n))
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendLen(b, num, len(s)), s...)
}

// headSize is the size of the message less that of outputs sent by reference.
func headSize(r *infer.Response) int {
	n := sizeString(r.Model) + sizeString(r.Version) + sizeString(r.ID)
	for i := range r.Params {
		n += sizeLen(sizeEntry(&r.Params[i]))
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		n += sizeLen(sizeOutput(o)) + 1 + protowire.SizeVarint(uint64(len(o.Data)))
		if len(o.Data) < byReference {
			n += len(o.Data)
		}
	}
	return n
}

func sizeOutput(o *infer.Tensor) int {
	n := sizeString(o.Name) + sizeString(o.Datatype.String())
	if len(o.Shape) > 0 {
		n += sizeLen(sizeShape(o.Shape))
	}
	return n
}

func sizeShape(shape []int64) int {
	n := 0
	for _, d := range shape {
		n += protowire.SizeVarint(uint64(d))
	}
	return n
}

func sizeEntry(p *infer.Param) int { return sizeLen(len(p.Name)) + sizeLen(sizeValue(&p.Value)) }

func sizeValue(v *infer.Value) int {
	switch v.Kind {
	case infer.KindInt64, infer.KindUint64:
		return 1 + protowire.SizeVarint(uint64(v.Int))
	case infer.KindDouble:
		return 1 + 8
	case infer.KindString:
		return sizeLen(len(v.Str))
	}
	return 1 + 1
}

func appendHead(b []byte, r *infer.Response) []byte {
	b = appendString(b, 1, r.Model)
	b = appendString(b, 2, r.Version)
	b = appendString(b, 3, r.ID)
	for i := range r.Params {
		p := &r.Params[i]
		b = appendLen(b, 4, sizeEntry(p))
		b = append(appendLen(b, 1, len(p.Name)), p.Name...)
		b = appendValue(appendLen(b, 2, sizeValue(&p.Value)), &p.Value)
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		b = appendLen(b, 5, sizeOutput(o))
		b = appendString(b, 1, o.Name)
		b = appendString(b, 2, o.Datatype.String())
		if len(o.Shape) > 0 {
			b = appendLen(b, 3, sizeShape(o.Shape))
			for _, d := range o.Shape {
				b = protowire.AppendVarint(b, uint64(d))
			}
		}
	}
	return b
}

func appendValue(b []byte, v *infer.Value) []byte {
	switch v.Kind {
	case infer.KindInt64:
		return protowire.AppendVarint(append(b, 2<<3), uint64(v.Int))
	case infer.KindString:
		return append(appendLen(b, 3, len(v.Str)), v.Str...)
	case infer.KindDouble:
		return protowire.AppendFixed64(append(b, 4<<3|byte(protowire.Fixed64Type)), math.Float64bits(v.Double))
	case infer.KindUint64:
		return protowire.AppendVarint(append(b, 5<<3), uint64(v.Int))
	}
	return append(b, 1<<3, byte(protowire.EncodeBool(v.Bool)))
}

// appendRaws appends raw_output_contents; of an output sent by reference only tag and
// length, and a cut.
func appendRaws(b []byte, r *infer.Response, cuts []cut) ([]byte, []cut) {
	for i := range r.Outputs {
		data := r.Outputs[i].Data
		b = appendLen(b, 6, len(data))
		if len(data) >= byReference {
			cuts = append(cuts, cut{len(b), i})
			continue
		}
		b = append(b, data...)
	}
	return b, cuts
}
