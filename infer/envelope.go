package infer

import (
	"crypto/x509"
	"net/netip"
)

// Action is what a call wants to do, as far as rights and limits are concerned.
// Source: the categories of the original's restricted APIs.
type Action uint8

// The actions.
const (
	ActionHealth Action = iota
	ActionMetadata
	ActionInference
	ActionSharedMemory
	ActionModelConfig
	ActionModelRepository
	ActionStatistics
	ActionTrace
	ActionLogging
	ActionMetrics // the metrics' own listener; no restricted API of the original
	numActions
)

// String is the name in the restricted-API flags.
func (a Action) String() string {
	return [...]string{"health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics",
		"trace", "logging", "metrics"}[a]
}

// Actions lists every action, for tables and for tests that walk them all.
func Actions() []Action {
	all := make([]Action, numActions)
	for i := range all {
		all[i] = Action(i)
	}
	return all
}

// Peer is the user at the other end of a connection from this host, by the kernel's word:
// who connected a Unix socket, or who made the socket that is connected over TCP. It is who
// is there for a proxy, too. The zero value is nobody in particular.
// Source: SO_PEERCRED, unix(7); sock_diag(7).
type Peer struct {
	Known bool
	UID   uint32
	// Finder finds the user of a connection over TCP, for those who need to know; nil:
	// nobody can.
	Finder UserFinder
}

// UserFinder finds the user at the other end of a connection. FindUser asks the kernel at
// the first call and must not wait. It may be called by any number of goroutines.
type UserFinder interface {
	FindUser() (uid uint32, known bool)
}

// User is who is at the other end; known is false where nobody can tell.
func (p *Peer) User() (uid uint32, known bool) {
	if p.Known || p.Finder == nil {
		return p.UID, p.Known
	}
	return p.Finder.FindUser()
}

// Envelope is all that is known of a call before its body is read.
type Envelope struct {
	Protocol  string // "http" or "grpc"
	Method    string // of HTTP; over gRPC the method's name, as "ModelInfer"
	Path      string // of HTTP, as sent; "" over gRPC
	Action    Action
	Change    bool   // the call changes something: loads, registers, sets; false: it only reads, or infers
	Model     string // "" where the call names none
	Version   string
	RequestID string // from headers; the body's id is not read yet
	Remote    netip.AddrPort
	Unix      bool  // came over a Unix socket
	Peer      Peer  // who is at the other end, on this host
	BodySize  int64 // as announced; -1: unknown
	Streaming bool  // the caller takes any number of responses
	Carrier   bool  // it carries any number of requests, each a call of its own whose Outer it is
	// Outer is the call that carries this one; nil: it came by itself.
	Outer   *Envelope
	Opened  int64 // Now when Open was called; 0: it never was
	Timings bool  // the caller wants the times in the answer's Server-Timing
	// Certificate is the leaf of the client's certificate, verified by the transport;
	// nil: none.
	Certificate *x509.Certificate
	// Header gives the first value of a header or metadata key, "" where absent. It
	// is valid during Open only.
	Header func(key string) string
	// Fields tells how many fields have a name of Header's; nil: not known. It is valid
	// as long as Header is.
	Fields interface{ Count(key string) int }

	// What Open finds out.

	// Target is the model, or model/version, that answers in place of what the path or
	// the message says; "": none.
	Target string
	// Placement is what the picker of a mesh said of the call's sequence; nil: no picker says
	// where sequences live.
	Placement *Placement

	// Span is the call in its trace; zero where nobody traces, or nobody named a trace
	// and the call is not sampled. Of a call that is not sampled Span.Span is the
	// caller's. Where only the body names the model it may be known with the request.
	Span  SpanContext
	State string       // tracestate that came with the caller's trace, not parsed; "": none
	Trace *TraceFamily // of a call whose spans are exported; nil: none are

	Principal *Principal // who calls; nil: nobody asked
	Admitted  any        // the admission step's record of the call; nil: none
	Weight    int        // of the caller, in shares of a full queue; 0: 1
}

// End is how a call ended.
type End struct {
	Status   int      // HTTP status, or number of the gRPC code
	Err      error    // what the caller was told; nil: it went well
	Request  *Request // nil for all but inference
	Received int64    // bytes of the body, as far as it was read
	Sent     int64    // bytes of the answer
}
