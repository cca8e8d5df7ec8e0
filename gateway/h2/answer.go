package h2

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/h2c"
	"github.com/sluice-serve/sluice/infer"
)

// Header blocks are written without the dynamic table and without Huffman codes, so
// that they depend on nothing. Source: RFC 7541, 6.2.2 and appendix A.
const (
	status200  = 0x88 // :status: 200, indexed
	sizeUpdate = 0x20 // the table's size is 0
	tableSize  = 4096 // before the peer says another
	nameStatus = 8    // :status
	nameType   = 31   // content-type
	typeGRPC   = "application/grpc"
)

// appendField adds a literal field with a name of its own, never indexed by us.
func appendField(b []byte, name, value string) []byte {
	b = h2c.AppendInt(append(b, 0), len(name))
	b = h2c.AppendInt(append(b, name...), len(value))
	return append(b, value...)
}

// appendIndexed adds a literal field whose name is an entry of the static table.
func appendIndexed(b []byte, name int, value string) []byte {
	if name < 15 {
		b = append(b, byte(name))
	} else {
		b = append(b, 15, byte(name-15))
	}
	return append(h2c.AppendInt(b, len(value)), value...)
}

// appendShrink begins a header block. What we send uses no table, but a peer that made its
// table smaller waits for a block that says so (RFC 9113, 4.3.1); ours is of no size then,
// for good.
func (c *conn) appendShrink(b []byte) []byte {
	if c.shrink {
		c.shrink = false
		b = append(b, sizeUpdate)
	}
	return b
}

func appendHeaders(b []byte, compressor string, fields []string) []byte {
	b = append(b, status200)
	b = appendIndexed(b, nameType, typeGRPC)
	if compressor != "" {
		b = appendField(b, "grpc-encoding", compressor)
	}
	return appendFields(b, fields)
}

func appendFields(b []byte, fields []string) []byte {
	for i := 0; i+1 < len(fields); i += 2 {
		b = appendValid(b, fields[i], fields[i+1])
	}
	return b
}

// appendValid adds a field of a handler's, where it may send one of that name and value.
func appendValid(b []byte, name, value string) []byte {
	if !validName(name) {
		if name = strings.ToLower(name); !validName(name) {
			return b
		}
	}
	if reserved(name) {
		return b
	}
	if strings.HasSuffix(name, "-bin") {
		value = base64.RawStdEncoding.EncodeToString([]byte(value))
	}
	if validValue(value) {
		b = appendField(b, name, value)
	}
	return b
}

// reserved says that a header is the transport's, so that no handler may send it. The
// list is grpc-go's.
func reserved(name string) bool {
	switch name {
	case "content-type", "user-agent", "grpc-message-type", "grpc-encoding", "grpc-message", "grpc-status", "grpc-timeout", "te":
		return true
	}
	return strings.HasPrefix(name, ":")
}

// decodeBinary decodes the value of a "-bin" header, padded or not. Other headers'
// values stay as they are.
func decodeBinary(name, v string) (string, error) {
	if !strings.HasSuffix(name, "-bin") {
		return v, nil
	}
	coding := base64.RawStdEncoding
	if len(v)%4 == 0 { // with its padding, if it needs any
		coding = base64.StdEncoding
	}
	b, err := coding.DecodeString(v)
	return string(b), err
}

// binaryValue is decodeBinary's, or v where it is no base64.
func binaryValue(v string) string {
	if b, err := decodeBinary("-bin", v); err == nil {
		return b
	}
	return v
}

// appendBlock adds a header block, in as many frames as the peer's largest one asks for.
func (c *conn) appendBlock(b []byte, stream uint32, flags byte, block []byte) []byte {
	kind := byte(frameHeaders)
	for len(block) > c.peerFrame {
		b = append(appendFrame(b, c.peerFrame, kind, flags, stream), block[:c.peerFrame]...)
		block, kind, flags = block[c.peerFrame:], frameContinuation, 0
	}
	return append(appendFrame(b, len(block), kind, flags|flagEndHeaders, stream), block...)
}

// blockLocked ends the header block that begins with its frame's header at at.
func (c *conn) blockLocked(at int) {
	frame := c.out.small[at:]
	n := len(frame) - frameHeader
	if n <= c.peerFrame {
		frame[0], frame[1], frame[2] = byte(n>>16), byte(n>>8), byte(n)
		return
	}
	h := parseHead(frame)
	block := slices.Clone(frame[frameHeader:])
	c.out.small = c.appendBlock(c.out.small[:at], h.stream, h.flags&^flagEndHeaders, block)
}

// okTrailer ends a call that succeeded.
const okTrailer = "\x00\x0bgrpc-status\x010"

// appendStatus adds the trailers of a call's end; more are others, encoded.
func appendStatus(b []byte, err error, more []byte) []byte {
	if err == nil {
		return append(append(b, okTrailer...), more...)
	}
	s := statusOf(err)
	b = appendField(b, "grpc-status", strconv.Itoa(int(s.Code())))
	if s.Message() != "" {
		b = appendField(b, "grpc-message", percent(s.Message()))
	}
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if details, err := proto.Marshal(p); err == nil {
			b = appendField(b, "grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
	return append(b, more...)
}

// statusOf reads the status of an error: its own, that of a context error, or Unknown as
// with grpc-go. Refusals of memory are infer's.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	var e *infer.Error
	if errors.As(err, &e) && e.Code == infer.Unavailable {
		return status.New(codes.Unavailable, err.Error())
	}
	return status.FromContextError(err)
}

// percent encodes a grpc-message. Source: "Percent-Encoded" in gRPC over HTTP2.
func percent(s string) string {
	plain := true
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '%' {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			b = append(b, '%', hex[c>>4], hex[c&15])
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

// answer ends a call with its one message, whose parts it takes, or with an error. It
// queues; flushing is the caller's.
func (st *Stream) answer(parts mem.BufferSlice, err error) {
	said := st.said()
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	st.answerLocked(parts, err, said)
}

func (st *Stream) answerLocked(parts mem.BufferSlice, err error, said said) {
	c, trailer, compressor := st.c, said.trailer, said.compressor
	if st.gone || c.ended != nil {
		parts.Free()
		return
	}
	c.strikesOK, c.pings = true, 0
	if err != nil {
		parts.Free()
		c.failLocked(st, err, trailer)
		return
	}
	compressed := byte(0)
	if compressor != "" {
		compressed = 1
	}
	n := parts.Len()
	small := n < byReference && len(c.out.small) < burst && len(c.sending) == 0 && int64(len(st.out.prefix)+n) <= min(c.sendLeft, st.sendLeft)
	if small && !st.begun && compressor == "" && !c.shrink && len(trailer) < minMaxFrame/2 {
		c.plainLocked(st, parts, n, trailer)
		return
	}
	if !st.begun { // else a service's handler has sent it
		at := len(c.out.small)
		c.out.small = appendFrame(c.out.small, 0, frameHeaders, flagEndHeaders, st.id)
		c.out.small = appendHeaders(c.appendShrink(c.out.small), compressor, nil)
		c.blockLocked(at)
		st.begun = true
	}
	if small {
		c.smallLocked(st, parts, n, compressed)
		c.out.small = append(c.out.small, 0, 0, 0, frameHeaders, flagEndHeaders|flagEndStream, byte(st.id>>24), byte(st.id>>16),
			byte(st.id>>8), byte(st.id))
		at := len(c.out.small) - frameHeader
		c.out.small = appendStatus(c.appendShrink(c.out.small), nil, trailer)
		c.blockLocked(at)
		c.overLocked(st)
		return
	}
	st.queueLocked(parts, n, compressed)
	st.out.trailer = appendStatus(nil, nil, trailer)
}

// overLocked forgets a stream whose end is queued, with a reset where the client is still
// sending.
func (c *conn) overLocked(st *Stream) {
	if !st.remoteEnd.Load() {
		c.out.small = appendReset(c.out.small, st.id, codeNo)
		c.stale = append(c.stale, st.id)
	}
	c.removeLocked(st)
}

// okAnswer are the frames around the message of a usual answer: a HEADERS frame, and the
// header of a DATA frame with the prefix of its message. Streams and lengths are filled in.
const (
	okFields = "\x88\x0f\x10\x10" + typeGRPC // as appendHeaders writes them
	okAnswer = "\x00\x00\x14\x01\x04\x00\x00\x00\x00" + okFields + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	okData   = frameHeader + len(okFields) // where the DATA frame begins
	okEnd    = "\x00\x00\x00\x01\x05\x00\x00\x00\x00" + okTrailer
)

// plainLocked writes the whole of a usual answer: neither compressed nor larger than the
// windows, on a stream of which nothing was sent.
func (c *conn) plainLocked(st *Stream, parts mem.BufferSlice, n int, trailer []byte) {
	b := slices.Grow(c.out.small, len(okAnswer)+n+len(okEnd)+len(trailer))
	at := len(b)
	b = append(b, okAnswer...)
	binary.BigEndian.PutUint32(b[at+5:], st.id)
	data := b[at+okData:]
	data[0], data[1], data[2] = byte((5+n)>>16), byte((5+n)>>8), byte(5+n)
	binary.BigEndian.PutUint32(data[5:], st.id)
	binary.BigEndian.PutUint32(data[frameHeader+1:], uint32(n))
	for _, p := range parts {
		b = append(b, p.ReadOnlyData()...)
	}
	at = len(b)
	b = append(append(b, okEnd...), trailer...)
	size := len(okTrailer) + len(trailer)
	b[at+1], b[at+2] = byte(size>>8), byte(size)
	binary.BigEndian.PutUint32(b[at+5:], st.id)
	c.out.small, st.begun = b, true
	c.sentLocked(st, 5+n)
	parts.Free()
	c.overLocked(st)
}

// sentLocked counts n bytes of a message that are queued in one frame.
func (c *conn) sentLocked(st *Stream, n int) {
	c.sendLeft -= int64(n)
	st.sendLeft -= int64(n)
	c.granted = min(c.granted+grants, maxGrants)
}

// smallLocked copies a message that the windows take.
func (c *conn) smallLocked(st *Stream, parts mem.BufferSlice, n int, compressed byte) {
	b := appendFrame(c.out.small, 5+n, frameData, 0, st.id)
	b = append(b, compressed, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	for _, p := range parts {
		b = append(b, p.ReadOnlyData()...)
	}
	c.out.small = b
	c.sentLocked(st, 5+n)
	parts.Free()
}

// queueLocked gives a message to the stream's output.
func (st *Stream) queueLocked(parts mem.BufferSlice, n int, compressed byte) {
	st.out = outgoing{parts: parts, at: -1, left: 5 + n, prefix: [5]byte{compressed, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}}
	st.queued, st.moved, st.steps = true, infer.Now(), 0
	st.c.sending = append(st.c.sending, st)
}

// failLocked ends a call with an error: in its trailers, or in its only header.
func (c *conn) failLocked(st *Stream, err error, trailer []byte) {
	var b []byte
	var none *abort
	switch {
	case errors.As(err, &none):
		b = appendIndexed(b, nameStatus, strconv.Itoa(none.http))
		b = appendStatus(appendIndexed(b, nameType, typeGRPC), none.Err(), nil)
	case st.begun:
		b = appendStatus(b, err, trailer)
	default:
		b = appendStatus(appendHeaders(b, "", nil), err, trailer)
	}
	if st.queued { // a message of a stream that has not left: the end comes behind it
		st.out.trailer = b
		return
	}
	c.endLocked(st, b)
}

// message takes the message, decompressed.
func (st *Stream) message() (*infer.Buffer, []byte, error) {
	in := &st.in
	memory, data := in.memory, in.data
	in.memory, in.data = nil, nil
	if !in.compressed {
		return memory, data, nil
	}
	defer memory.Release()
	return st.c.s.decompress(st.head.encoding, data, st.call)
}

// compressed encodes an answer as the handler wishes.
func (st *Stream) compressed(parts mem.BufferSlice) (mem.BufferSlice, error) {
	st.mu.Lock()
	name := st.compressor
	st.mu.Unlock()
	if name == "" {
		return parts, nil
	}
	return st.c.s.compressBy(name, parts)
}

// said is what a handler wishes for its answer.
type said struct {
	trailer    []byte // fields, encoded
	compressor string
}

func (st *Stream) said() said {
	st.mu.Lock()
	defer st.mu.Unlock()
	return said{st.trailer, st.compressor}
}

// compressBy encodes a message by a compressor of grpc-go's registry, and frees parts.
func (s *Server) compressBy(name string, parts mem.BufferSlice) (mem.BufferSlice, error) {
	z := encoding.GetCompressor(name)
	if z == nil {
		parts.Free()
		return nil, status.Errorf(codes.Internal, "no compressor %q", name)
	}
	defer parts.Free()
	return compress(z, parts, s.compressed)
}
