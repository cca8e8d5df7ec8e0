package h2

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// registered is a method of a service that was generated for grpc-go.
type registered struct {
	impl   any
	unary  func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error)
	stream grpc.StreamHandler
}

// run answers a call as grpc-go would.
func (r *registered) run(st *Stream) {
	call := &serverStream{st: st}
	ctx := metadata.NewIncomingContext(context.Context(st), st.head.metadata())
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: st.c.remote, LocalAddr: st.c.local, AuthInfo: st.c.auth})
	call.ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{call})
	var parts mem.BufferSlice
	err := r.guarded(call, &parts)
	call.mu.Lock()
	header, trailer := call.header, call.trailer
	call.mu.Unlock()
	st.mu.Lock()
	for k, values := range trailer {
		for _, v := range values {
			st.addTrailerLocked(k, v)
		}
	}
	st.mu.Unlock()
	if r.stream != nil {
		st.inbox.close(st)
		st.finish(err, header)
		return
	}
	st.leave()
	if len(header) > 0 {
		st.header(header)
	}
	st.answer(parts, err)
}

// guarded runs the handler; a panic of it is logged and ends its call alone.
func (r *registered) guarded(call *serverStream, parts *mem.BufferSlice) (err error) {
	defer func() {
		if p := recover(); p != nil {
			call.st.c.s.deps.Log.Error("gRPC: a handler panicked", "method", call.st.method.name, "panic", p)
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	if r.stream != nil {
		return r.stream(r.impl, call)
	}
	reply, err := r.unary(r.impl, call.ctx, call.receiveOne, nil)
	if err != nil {
		return err
	}
	*parts, err = call.st.c.s.deps.Codec.Marshal(reply)
	if err != nil {
		return marshalFault(err)
	}
	call.keep()
	*parts, err = call.st.compressed(*parts)
	return err
}

// marshalFault is the end of a call whose answer could not be encoded. A refusal of memory is told as such.
func marshalFault(err error) error {
	if infer.ReasonOf(err) == infer.ReasonMemory {
		return err
	}
	return status.Errorf(codes.Internal, "grpc: error while marshaling: %v", err)
}

// keep leaves a header that was sent true: the answer is compressed as it said.
func (s *serverStream) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent {
		s.st.Compress(s.st.begunAs)
	}
}

// serverStream is a call as generated code knows it.
type serverStream struct {
	st  *Stream
	ctx context.Context // the call's, with what grpc-go's packages look for in it

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header
}

var (
	_ grpc.ServerStream          = (*serverStream)(nil)
	_ grpc.ServerTransportStream = transportStream{}
)

// transportStream is a call as grpc.SetHeader and its like know it.
type transportStream struct{ *serverStream }

// SetTrailer adds to the trailers.
func (s transportStream) SetTrailer(md metadata.MD) error {
	s.serverStream.SetTrailer(md)
	return nil
}

// Method is the call's path.
func (s *serverStream) Method() string { return s.st.head.path }

// Context is the call's.
func (s *serverStream) Context() context.Context { return s.ctx }

// errSent is grpc-go's word on a header that comes too late.
var errSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

// SetHeader adds to the header, which goes with the first message.
func (s *serverStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent {
		return errSent
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader sends the header now.
func (s *serverStream) SendHeader(md metadata.MD) error {
	if err := s.SetHeader(md); err != nil {
		return err
	}
	s.begin()
	s.st.c.flush(false)
	return nil
}

// SetTrailer adds to the trailers.
func (s *serverStream) SetTrailer(md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
}

func (s *serverStream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sent {
		s.sent = true
		s.st.header(s.header)
	}
}

// receiveOne decodes the message of a unary call.
func (s *serverStream) receiveOne(v any) error {
	if err := s.st.arrival(); err != nil {
		return err
	}
	memory, data, err := s.st.message()
	if err != nil {
		return err
	}
	return s.decode(memory, data, v)
}

// Receiver is a message of a stream that reads itself from where it was received.
type Receiver interface {
	// Receive takes a message, and the reference to the memory that it lies in.
	Receive(memory *infer.Buffer, message []byte) error
}

func (s *serverStream) decode(memory *infer.Buffer, data []byte, v any) error {
	if r, ok := v.(Receiver); ok {
		return r.Receive(memory, data)
	}
	defer memory.Release()
	if err := s.st.c.s.deps.Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, v); err != nil {
		if told := new(infer.Error); errors.As(err, &told) { // in words for clients
			return status.Error(codes.Internal, err.Error())
		}
		return status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	return nil
}

// RecvMsg decodes the next message; io.EOF is the end of them.
func (s *serverStream) RecvMsg(v any) error {
	memory, data, err := s.st.inbox.take(s.st)
	if err != nil {
		return err
	}
	return s.decode(memory, data, v)
}

// SendMsg sends a message and waits until the client's windows have taken it, so that
// a stream never has more than one message under way.
func (s *serverStream) SendMsg(v any) error {
	parts, err := s.st.c.s.deps.Codec.Marshal(v)
	if err != nil {
		return marshalFault(err)
	}
	s.begin()
	compressed := byte(0)
	if s.st.begunAs != "" {
		compressed = 1
		if parts, err = s.st.c.s.compressBy(s.st.begunAs, parts); err != nil {
			return err
		}
	}
	return s.st.send(parts, compressed)
}

// header queues the header of an answer.
func (st *Stream) header(md metadata.MD) {
	var fields []string
	for k, values := range md {
		for _, v := range values {
			fields = append(fields, k, v)
		}
	}
	st.mu.Lock()
	st.begunAs = st.compressor
	st.mu.Unlock()
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.gone || c.ended != nil || st.begun {
		return
	}
	st.begun = true
	at := len(c.out.small)
	c.out.small = c.appendShrink(appendFrame(c.out.small, 0, frameHeaders, flagEndHeaders, st.id))
	c.out.small = appendHeaders(c.out.small, st.begunAs, fields)
	c.blockLocked(at)
}

// send queues one message of a stream and waits until it has left.
func (st *Stream) send(parts mem.BufferSlice, compressed byte) error {
	c := st.c
	c.mu.Lock()
	if st.gone || c.ended != nil || st.queued { // queued: the one before was given up
		c.mu.Unlock()
		parts.Free()
		if err := st.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		return io.EOF
	}
	c.strikesOK, c.pings = true, 0
	sent := make(chan struct{})
	st.queueLocked(parts, parts.Len(), compressed)
	st.out.sent = sent
	c.mu.Unlock()
	c.flush(true)
	select {
	case <-sent:
	case <-st.Done():
		return status.FromContextError(st.Err()).Err()
	}
	return nil
}

// finish ends a streaming call.
func (st *Stream) finish(err error, header metadata.MD) {
	if err == nil || len(header) > 0 {
		st.header(header)
	}
	st.mu.Lock()
	trailer := st.trailer
	st.mu.Unlock()
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.gone || c.ended != nil {
		return
	}
	if err != nil {
		c.failLocked(st, err, trailer)
		return
	}
	block := appendStatus(nil, nil, trailer)
	if st.queued {
		st.out.trailer = block
		return
	}
	c.endLocked(st, block)
}
