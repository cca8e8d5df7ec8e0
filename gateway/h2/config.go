package h2

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc/encoding"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// Config bounds a Server. DefaultConfig is where to start from: a zero limit is not
// valid, a zero time means what its comment says.
type Config struct {
	TLS *tls.Config // with "h2" in NextProtos; nil: plain text, by prior knowledge

	MaxStreams       uint32 // calls in flight on one connection
	MaxMessage       int64  // bytes of one message, decompressed; memory is taken as its length is known
	MaxHeaderBytes   int    // names, values and 32 bytes for each header of a call (RFC 9113, 6.5.2)
	MaxFrame         int    // bytes of one frame that is received: 16384 to 16777215
	StreamWindow     int    // bytes that a peer may send ahead on one call
	ConnectionWindow int    // and on one connection

	// Loops read connections of small calls that are not encrypted; none: each connection has
	// a goroutine.
	Loops []*loop.Loop

	// Descriptors may close connections that rest for new ones; nil: never.
	Descriptors *listen.Descriptors

	HandshakeTimeout time.Duration // for TLS and the client's preface
	WriteTimeout     time.Duration // a peer that takes no byte for so long is cut off

	// Calls whose first message has not come: a connection's that have a goroutine to wait
	// on, and all connections' from which on streams get no more than that.
	MaxQuiet, MaxQuietAll int

	KeepaliveTime         time.Duration // without news from the peer it is pinged; 0: never
	KeepaliveTimeout      time.Duration // for its answer
	PermitWithoutCalls    bool          // pings of clients that have no call, and to them
	MinPingInterval       time.Duration // pings that come oftener are strikes
	MaxPingStrikes        int           // one more ends the connection; 0: no bound
	MaxPingsWithoutData   int           // keepalive pings in a row while nothing else is sent; 0: no bound
	MaxConnectionAge      time.Duration // then the connection is drained; 0: no bound
	MaxConnectionAgeGrace time.Duration // for the calls on it; 0: no bound
}

// DefaultConfig is a plain-text server with the windows that were measured best for
// large tensors. Keepalive defaults are gRPC's own.
func DefaultConfig() Config {
	return Config{MaxStreams: 4096, MaxMessage: math.MaxInt32, MaxHeaderBytes: 64 << 10, MaxFrame: 1 << 20, StreamWindow: 8 << 20,
		ConnectionWindow: 16 << 20, HandshakeTimeout: 20 * time.Second, WriteTimeout: time.Minute, MaxQuiet: 256, MaxQuietAll: 16384, KeepaliveTime: 2 * time.Hour,
		KeepaliveTimeout: 20 * time.Second, MinPingInterval: 5 * time.Minute, MaxPingStrikes: 2, MaxPingsWithoutData: 2}
}

// Validate says everything that is wrong with c at once, or nil.
func (c *Config) Validate() error {
	var errs []error
	in := func(name string, v, low, high int64) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("h2: %s %d is not in [%d, %d]", name, v, low, high))
		}
	}
	in("MaxStreams", int64(c.MaxStreams), 1, math.MaxInt32)
	in("MaxMessage", c.MaxMessage, 1, math.MaxInt32)
	in("MaxHeaderBytes", int64(c.MaxHeaderBytes), 1<<10, 1<<20)
	in("MaxFrame", int64(c.MaxFrame), minMaxFrame, maxMaxFrame)
	in("StreamWindow", int64(c.StreamWindow), initialWindow, math.MaxInt32)
	in("ConnectionWindow", int64(c.ConnectionWindow), initialWindow, math.MaxInt32)
	in("MaxQuiet", int64(c.MaxQuiet), 1, math.MaxInt32)
	in("MaxQuietAll", int64(c.MaxQuietAll), 1, math.MaxInt32)
	in("HandshakeTimeout", int64(c.HandshakeTimeout), 1, math.MaxInt64)
	in("WriteTimeout", int64(c.WriteTimeout), 1, math.MaxInt64)
	return errors.Join(errs...)
}

// Memory hands out counted memory for messages; gateway/memory.Bodies fits it.
type Memory interface {
	// Body gives n bytes of undefined content; the caller holds the one reference.
	Body(n int64) (*infer.Buffer, error)
	// Most is the largest body that there will ever be memory for, and Fits refuses n bytes
	// that are more.
	Most() int64
	Fits(n int64) error
	// Aside copies what has come of a body out of the way of a larger piece.
	Aside(data []byte) (*infer.Buffer, error)
	// Scarce says that bodies get less on their announced lengths.
	Scarce() bool
	// Pressed says that memory of bodies or of answers runs out: answers that their clients
	// don't take are dropped soon.
	Pressed() bool
}

// Deps are a Server's collaborators.
type Deps struct {
	// Methods answer the calls of their paths, "/package.Service/Method", in place of a
	// registered service's.
	Methods map[string]Method
	Memory  Memory           // for messages of registered services
	Codec   encoding.CodecV2 // of registered services
	// Responses counts compressed messages until they are written; nil: they are not counted.
	Responses *infer.Budget
	Log       *slog.Logger
}
