package grpcapi

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
)

// grpc-go never frees the messages that wait for a client's window when its connection ends: its loopyWriter drops
// them with its streams (internal/transport/controlbuf.go, estdStreams). So the buffers of responses are wrapped on
// their way to grpc-go, and those that it still has when a connection has ended, and the call that sent them too, are
// freed here. By then no goroutine of grpc-go reads them.

// connLoans are the buffers that one connection has of calls that have ended.
type connLoans struct {
	mu    sync.Mutex
	ended bool               // the connection; buffers that come are freed at once
	out   map[*loan]struct{} // nil: none
}

// callLoans are the buffers that grpc-go has of one call under way.
type callLoans struct {
	conn *connLoans
	out  map[*loan]struct{} // under conn.mu; nil: none
}

// loan is one buffer that grpc-go has. To mem.NewBuffer it is the pool that it came from.
type loan struct {
	call  *callLoans
	inner mem.Buffer
	data  []byte
}

// Get is never called: nothing is allocated here.
func (l *loan) Get(int) *[]byte { panic("grpcapi: memory asked of a loan") }

// Put is called when grpc-go has freed the buffer.
func (l *loan) Put(*[]byte) {
	conn := l.call.conn
	conn.mu.Lock()
	_, sending := l.call.out[l]
	_, waiting := conn.out[l]
	delete(l.call.out, l)
	delete(conn.out, l)
	conn.mu.Unlock()
	if sending || waiting { // else the end of the connection has
		l.inner.Free()
	}
}

// lend wraps the buffers of a message. Those that are too small for grpc-go to free are copied.
func (c *callLoans) lend(parts mem.BufferSlice) mem.BufferSlice {
	for i, inner := range parts {
		data := inner.ReadOnlyData()
		switch inner.(type) {
		case mem.SliceBuffer, *mem.SliceBuffer:
			continue // there is nothing to free
		}
		if mem.IsBelowBufferPoolingThreshold(len(data)) {
			parts[i] = mem.SliceBuffer(append([]byte(nil), data...))
			inner.Free()
			continue
		}
		l := &loan{call: c, inner: inner, data: data[:len(data):len(data)]}
		c.conn.mu.Lock()
		if c.out == nil {
			c.out = map[*loan]struct{}{}
		}
		c.out[l] = struct{}{}
		c.conn.mu.Unlock()
		parts[i] = mem.NewBuffer(&l.data, l)
	}
	return parts
}

// end leaves what the call has not freed to its connection.
func (c *callLoans) end() {
	c.conn.mu.Lock()
	rest := c.out
	c.out = nil
	if !c.conn.ended && len(rest) > 0 {
		if c.conn.out == nil {
			c.conn.out = map[*loan]struct{}{}
		}
		for l := range rest {
			c.conn.out[l] = struct{}{}
		}
		rest = nil
	}
	c.conn.mu.Unlock()
	for l := range rest {
		l.inner.Free()
	}
}

// end frees what grpc-go has dropped.
func (c *connLoans) end() {
	c.mu.Lock()
	rest := c.out
	c.out, c.ended = nil, true
	c.mu.Unlock()
	for l := range rest {
		l.inner.Free()
	}
}

// loanEvents are told of grpc-go's connections and calls.
type loanEvents struct{}

type connLoansKey struct{}

type callLoansKey struct{}

// TagConn fits stats.Handler.
func (loanEvents) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connLoansKey{}, &connLoans{})
}

// HandleConn fits stats.Handler. The end comes after grpc-go's writer has ended.
func (loanEvents) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); !ended {
		return
	}
	if c, ok := ctx.Value(connLoansKey{}).(*connLoans); ok {
		c.end()
	}
}

// TagRPC fits stats.Handler.
func (loanEvents) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	c, ok := ctx.Value(connLoansKey{}).(*connLoans)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, callLoansKey{}, &callLoans{conn: c})
}

// HandleRPC fits stats.Handler. The end comes after the handler's, and after what it sent was handed over.
func (loanEvents) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); !ended {
		return
	}
	if c, ok := ctx.Value(callLoansKey{}).(*callLoans); ok {
		c.end()
	}
}

// lentReply is a message with the call that sends it.
type lentReply struct {
	message any
	call    *callLoans
}

// lent is a reply whose buffers are counted for the call of ctx.
func lent(ctx context.Context, reply any) any {
	if c, ok := ctx.Value(callLoansKey{}).(*callLoans); ok && reply != nil {
		return &lentReply{reply, c}
	}
	return reply
}

// lendingRegistrar registers services whose replies are lent.
type lendingRegistrar struct{ to grpc.ServiceRegistrar }

// RegisterService fits grpc.ServiceRegistrar.
func (r lendingRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = append([]grpc.MethodDesc(nil), desc.Methods...)
	for i := range own.Methods {
		handle := own.Methods[i].Handler
		own.Methods[i].Handler = func(srv any, ctx context.Context, dec func(any) error, by grpc.UnaryServerInterceptor) (any, error) {
			reply, err := handle(srv, ctx, dec, by)
			if err != nil {
				return nil, err
			}
			return lent(ctx, reply), nil
		}
	}
	own.Streams = append([]grpc.StreamDesc(nil), desc.Streams...)
	for i := range own.Streams {
		handle := own.Streams[i].Handler
		own.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error { return handle(srv, lendingStream{stream}) }
	}
	r.to.RegisterService(&own, impl)
}

// lendingStream is a stream whose replies are lent.
type lendingStream struct{ grpc.ServerStream }

// SendMsg fits grpc.ServerStream.
func (s lendingStream) SendMsg(m any) error { return s.ServerStream.SendMsg(lent(s.Context(), m)) }

// lendingCodec is a codec for replies that are lent, and for other messages.
type lendingCodec struct{ encoding.CodecV2 }

// Marshal fits encoding.CodecV2.
func (c lendingCodec) Marshal(v any) (mem.BufferSlice, error) {
	reply, ok := v.(*lentReply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	parts, err := c.CodecV2.Marshal(reply.message)
	if err != nil {
		return nil, err
	}
	return reply.call.lend(parts), nil
}
