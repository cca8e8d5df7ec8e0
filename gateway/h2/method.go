package h2

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
)

// Method is a unary method that reads its messages where they were received. Its
// methods are called for many calls at a time.
type Method interface {
	// Begin decides by the header alone whether a call may go on. It runs on the
	// connection's goroutine and must not block. ctx is the Stream. An error answers the
	// call. A Call that was begun gets either Serve or Abort, once.
	Begin(ctx context.Context) (Call, error)
}

// Call is one call of a Method.
type Call interface {
	// Memory gives memory for a message of n bytes; the message goes to its last n
	// bytes, so a call may place it by asking for more. first are the first bytes of the
	// message, as many as are there, maybe none. The reference is the transport's until
	// Serve or Abort, then the call's. It runs on the connection's goroutine and must
	// not block.
	Memory(n int64, first []byte) (*infer.Buffer, error)
	// Serve answers a call with an encoded message, which the transport owns, or with an
	// error that carries a gRPC status. memory is what Memory gave, message lies in it
	// (both are nil for an empty message). It runs on a goroutine of its own.
	Serve(memory *infer.Buffer, message []byte) (mem.BufferSlice, error)
	// Sent is called after Serve, when the answer or the error was written, or was queued
	// behind what another goroutine is writing.
	Sent()
	// Abort ends a call whose message did not arrive: err says why, and the transport
	// has its memory back. It may run on any goroutine.
	Abort(err error)
}

// method is what a path leads to.
type method struct {
	name   string
	hot    Method      // or
	served *registered // of a service
}

// streams says that a call may have any number of messages.
func (m *method) streams() bool { return m != nil && m.served != nil && m.served.stream != nil }
