package h2

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// Stream is one call. It is the call's context: it ends when the client resets the
// call, its deadline passes, its connection ends, or it is answered. FromContext finds
// it under contexts that are made of it. Its memory may be another call's once the call's
// Sent has said so.
type Stream struct {
	lifetime.Context
	call Call    // of a Method, or nil for a registered service
	old  Call    // of the call before, for its memory; nil: none
	was  *method // whose call it was
	record
}

var _ lifetime.Watchable = (*Stream)(nil)

// record is what a Stream knows of one call.
type record struct {
	c      *conn
	id     uint32
	head   *header
	method *method
	next   [numLinks]*Stream // in the connection's tables

	life       atomic.Uint32 // what a Method's call is at
	recvLeft   atomic.Int64  // bytes that the peer may still send
	uncredited atomic.Int64  // bytes taken that the peer was not told of
	remoteEnd  atomic.Bool   // END_STREAM came, or nothing more is read

	// The reading goroutine's alone, but for in once the message is complete.
	in         incoming
	body       int64 // bytes of DATA without padding
	dispatched bool
	place      int         // in conn.begun
	again      bool        // the connection holds it for nothing but its answer
	rest       func()      // what Start left to do, for a goroutine of the crew
	discard    bool        // what still comes is not looked at
	early      bool        // the reading goroutine starts it
	quiet      atomic.Bool // a goroutine waits for its first message: it is counted

	// Guarded by conn.mu.
	sendLeft int64 // bytes that we may still send
	out      outgoing
	queued   bool  // in conn.sending
	moved    int64 // when its output moved last by a turn, on the clock of infer.Now
	steps    int   // bytes that it moved since
	seen     seen
	begun    bool // its HEADERS were sent
	gone     bool // out of conn.streams: nothing more is sent

	mu         sync.Mutex
	arrived    chan struct{} // closed when in is complete or failed; nil: it was before the call began
	fault      error         // why in will never be complete
	left       bool          // the handler does not wait for in any more
	inbox      inbox         // of a streaming call
	trailer    []byte        // fields, encoded
	room       [64]byte      // for them
	compressor string        // what the handler chose for the answer
	begunAs    string        // what a stream's header said of it; the writing goroutine's alone
}

// incoming is the message on its way in.
type incoming struct {
	prefix     [5]byte
	have       int // bytes of the prefix
	length     int64
	compressed bool
	memory     *infer.Buffer
	data       []byte // where the message goes; its length is the message's
	got        int64
	heard      int64 // when some of it came last, on the clock of infer.Now
	complete   bool
}

// outgoing is the answer on its way out.
type outgoing struct {
	parts   mem.BufferSlice // owned until they are written
	at      int             // the part that goes next
	offset  int             // in it
	left    int             // bytes of the message, its prefix included
	prefix  [5]byte
	tell    bool          // the call's Sent is called when all of it was written
	trailer []byte        // block that ends the stream; nil: more follows
	sent    chan struct{} // closed when all left; nil: nobody waits
}

type streamKey struct{}

// FromContext finds the Stream that a call's context was made of.
func FromContext(ctx context.Context) (*Stream, bool) {
	st, ok := ctx.Value(streamKey{}).(*Stream)
	return st, ok
}

// Value is context.Context's: FromContext's alone.
func (st *Stream) Value(key any) any {
	if key == (streamKey{}) {
		return st
	}
	return nil
}

// Method is the call's path, "/package.Service/Method".
func (st *Stream) Method() string { return st.head.path }

// Burst is what the call's message was read in, for its Start; nil: it has come by itself.
func (st *Stream) Burst() *loop.Burst {
	if !st.early {
		return nil
	}
	return st.c.gather
}

// Remote is the peer's address.
func (st *Stream) Remote() net.Addr { return st.c.remote }

// Caller is the peer as an envelope names it: its address, or that it came over a Unix
// socket, and from whom.
func (st *Stream) Caller() (at netip.AddrPort, unix bool, peer infer.Peer) {
	return st.c.caller.at, st.c.caller.unix, st.c.caller.peer
}

// caller is what Caller says.
type caller struct {
	at   netip.AddrPort
	unix bool
	peer infer.Peer
}

// Header is the first value of a header by its lower-case name; "" where there is none.
func (st *Stream) Header(key string) string {
	v := st.head.get(key)
	if strings.HasSuffix(key, "-bin") {
		return binaryValue(v)
	}
	return v
}

// Count is how many headers have a name, in lower case.
func (st *Stream) Count(key string) (n int) {
	if st.head.lacks(key) {
		return 0
	}
	for i := range st.head.fields {
		if st.head.fields[i].Name == key {
			n++
		}
	}
	return n
}

// Metadata is all of the call's header, as a map of its own.
func (st *Stream) Metadata() metadata.MD { return st.head.metadata() }

// SetTrailer adds trailers to the answer: name, value, and so on. They are sent as they are
// and must be valid in a header. After the answer it does nothing.
func (st *Stream) SetTrailer(fields ...string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := 0; i+1 < len(fields); i += 2 {
		st.addTrailerLocked(fields[i], fields[i+1])
	}
}

func (st *Stream) addTrailerLocked(name, value string) {
	if st.trailer == nil {
		st.trailer = st.room[:0]
	}
	st.trailer = appendValid(st.trailer, name, value)
}

// Accepts says that the client can read messages of an encoding.
func (st *Stream) Accepts(encoding string) bool {
	for rest := st.head.accept; rest != ""; {
		var one string
		one, rest, _ = strings.Cut(rest, ",")
		if strings.TrimSpace(one) == encoding {
			return true
		}
	}
	return false
}

// Compress makes the answer be sent in an encoding that grpc-go's registry knows.
func (st *Stream) Compress(encoding string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.compressor = encoding
}

// arrival blocks until the message is complete, the call fails, or its context ends. On
// success the message is the caller's.
func (st *Stream) arrival() error {
	st.mu.Lock()
	arrived := st.arrived
	st.mu.Unlock()
	if arrived == nil {
		return nil
	}
	var err error
	select {
	case <-arrived:
	case <-st.Done():
		err = st.Err()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if err != nil {
		select {
		case <-arrived: // at the same time: the message is ours all the same
			err = nil
		default:
		}
	}
	if err == nil {
		err = st.fault
	}
	st.left = err != nil
	return err
}

// leave is for handlers that end without having asked for their message.
func (st *Stream) leave() {
	if st.arrivedNow() {
		st.c.drop(&st.in)
	}
}

// arrivedNow is arrival without waiting: it says that the message is there.
func (st *Stream) arrivedNow() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.arrived == nil {
		return true
	}
	select {
	case <-st.arrived:
		return st.fault == nil
	default:
		st.left = true
		return false
	}
}

// arrive says to a handler that waits that the message is complete, or with an error
// that it never will be. The reading goroutine calls it, once. False: nobody takes the
// message.
func (st *Stream) arrive(err error) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.fault = err
	close(st.arrived)
	return err == nil && !st.left
}
