package h2

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Method is a unary method that reads its messages where they were received. Its
// methods are called for many calls at a time.
type Method interface {
	// Begin decides by the header alone whether a call may go on. It runs on the
	// connection's goroutine, or one that serves many connections, and must not block. ctx
	// is the Stream. An error answers the call; see Refusal. A Call that was begun gets either Start or Abort, once. old is a Call of this
	// Method whose Sent has said that its memory may be another call's; nil: there is none.
	Begin(ctx context.Context, old Call) (Call, error)
}

// Refusal is an error of Begin of which something is to be told that may take its time, as
// in a log.
type Refusal interface {
	error
	// Tell is called once, on a goroutine that may wait, and gives the error that answers
	// the call.
	Tell() error
}

// Call is one call of a Method.
type Call interface {
	// Memory gives memory for a message of n bytes; the message goes to its last n
	// bytes, so a call may place it by asking for more. first are the first bytes of the
	// message, as many as are there, maybe none. The reference is the transport's until
	// Start or Abort, then the call's. It runs on the connection's goroutine and must
	// not block.
	Memory(n int64, first []byte) (*infer.Buffer, error)
	// Quick says, once Memory has seen the first bytes of a message that is not small, that
	// Start does not take longer the more bytes there are.
	Quick() bool
	// Start begins to answer a call, whose Stream.Answer ends it, on any goroutine and maybe
	// before Start returns. memory is what Memory gave, message lies in it (both are nil
	// for an empty message). For small messages and quick ones it runs on the connection's
	// goroutine, so it must not block. Where the call needs somebody who waits, wait is not nil: it
	// is called on a goroutine of its own, and answers, or leaves that to another one.
	Start(memory *infer.Buffer, message []byte) (wait func())
	// Sent is called after Start, when the answer or the error was written, or will never
	// be: the transport's last word to the call. It must not block. again says that nobody
	// looks at the call or its context any more, so that both may be another call's. Where
	// Start panicked before the answer it is not called.
	Sent() (again bool)
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
