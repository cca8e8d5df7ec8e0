package grpcapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
)

// Config is the gRPC server in values. DefaultConfig is what the flags start from.
// Source of names and defaults: the original's --grpc-… flags, reference A16.
type Config struct {
	ServiceConfig

	listen.Config
	Transport Transport
	TLS       listen.TLS  // the zero value is plain text
	Secure    *tls.Config // with "h2" in NextProtos, in the place of TLS; nil: its files are read

	// Compression of responses: none, low, medium or high; "" is none. The level is the
	// process's, see RegisterEncodings.
	Compression string

	KeepaliveTime         time.Duration // idle time after which the client is pinged
	KeepaliveTimeout      time.Duration // for its answer
	PermitWithoutCalls    bool          // pings of clients without calls, and to them; grpc-go always sends its own
	MinPingInterval       time.Duration // pings of clients that come oftener are strikes
	MaxPingStrikes        int           // one more ends the connection; 0: no bound; grpc-go knows 0 and 2
	MaxPingsWithoutData   int           // keepalive pings in a row while nothing else is sent; 0: no bound; grpc-go has none
	MaxConnectionAge      time.Duration // 0: no bound
	MaxConnectionAgeGrace time.Duration // 0: no bound

	Log   *slog.Logger // of the own transport; nil: none
	Loops []*loop.Loop // read connections of small calls on the own transport; none: each has a goroutine

	MaxMessage int64  // bytes of one message, decompressed; memory is taken as it arrives
	MaxStreams uint32 // calls in flight on one connection
	Workers    int    // goroutines that serve unary calls; 0: two for each core

	StreamWindow     int32 // bytes that a client may send ahead on one call
	ConnectionWindow int32 // and on one connection
	BufferSize       int   // of reads and writes, for each connection
}

// Transport is what carries the protocol.
type Transport string

// The transports: gateway/h2 of our own, and grpc-go.
const (
	TransportOwn     Transport = "sluice"
	TransportLibrary Transport = "library"
)

// DefaultConfig is a server without flags, on all addresses, port 8001. Windows and
// buffers are those that were measured best for large tensors.
func DefaultConfig() Config {
	return Config{Config: listen.Config{Address: "0.0.0.0", Port: 8001}, Transport: TransportOwn, Compression: "none", KeepaliveTime: 2 * time.Hour,
		KeepaliveTimeout: 20 * time.Second, MinPingInterval: 5 * time.Minute, MaxPingStrikes: 2, MaxPingsWithoutData: 2, MaxMessage: math.MaxInt32, MaxStreams: 4096,
		StreamWindow: 8 << 20, ConnectionWindow: 16 << 20, BufferSize: 64 << 10}
}

// Validate says everything that is wrong with c at once, or nil.
func (c *Config) Validate() error {
	var errs []error
	if _, ok := compressionLevel(c.Compression); !ok {
		errs = append(errs, fmt.Errorf("response compression level %q is not none, low, medium or high", c.Compression))
	}
	if c.Transport != TransportOwn && c.Transport != TransportLibrary {
		errs = append(errs, fmt.Errorf("transport %q is not %s or %s", c.Transport, TransportOwn, TransportLibrary))
	}
	if c.MaxMessage <= 0 || c.MaxMessage > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("largest message %d is not in [1, %d]", c.MaxMessage, math.MaxInt32))
	}
	errs = append(errs, c.TLS.Validate())
	return errors.Join(errs...)
}

// Server serves a Service over its Transport. Make it with NewServer; Serve runs it once.
type Server struct {
	service   *Service
	transport transport
	listeners []net.Listener // TCP first
}

// transport is what a Server needs of one.
type transport interface {
	// Serve accepts connections until Shutdown, which makes it return nil.
	Serve(l net.Listener) error
	// Shutdown waits for the calls in flight until ctx ends, and then cuts them off.
	Shutdown(ctx context.Context) error
	// Stop cuts off everything at once.
	Stop()
}

// NewServer checks cfg, reads the certificates and opens the listeners, so that Addr
// is known; ctx bounds that. It accepts nothing before Serve. A server that is not served
// is closed by Shutdown.
func NewServer(ctx context.Context, cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	RegisterEncodings(cfg.Compression)
	cfg.CompressResponses = cfg.Compression != "none" && cfg.Compression != ""
	service, err := NewService(cfg.ServiceConfig, deps)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	s := &Server{service: service}
	if s.listeners, err = listen.Open(ctx, cfg.Config); err != nil {
		return nil, fmt.Errorf("gRPC: %w", err)
	}
	if cfg.Transport == TransportLibrary {
		s.transport = newLibrary(&cfg, service, tlsConfig)
		return s, nil
	}
	if s.transport, err = newOwn(&cfg, service, tlsConfig); err != nil {
		s.closeListeners()
		return nil, err
	}
	return s, nil
}

// tls reads the certificates; nil is plain text.
func (c *Config) tls() (*tls.Config, error) {
	if c.TLS.Cert == "" || c.Secure != nil {
		return c.Secure, nil
	}
	t, err := c.TLS.Config("h2")
	if err != nil {
		return nil, fmt.Errorf("gRPC: %w", err)
	}
	return t, nil
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		_ = l.Close() // nothing was accepted
	}
}

// Addr is where the server listens over TCP.
func (s *Server) Addr() net.Addr { return s.listeners[0].Addr() }

// Serve accepts connections until Shutdown, which makes it return nil, or until a
// listener fails, which ends the calls in flight. Its goroutines have ended when it
// returns.
func (s *Server) Serve() error {
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { ended <- s.transport.Serve(l) }()
	}
	var errs []error
	for range s.listeners {
		if err := <-ended; err != nil {
			errs = append(errs, err)
			s.service.Stop()
			s.transport.Stop() // one listener less is no server
		}
	}
	return errors.Join(errs...)
}

// Shutdown refuses new connections and calls, waits for the calls in flight until ctx
// ends, and then cuts them off; it says so by ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.service.Stop()
	defer s.closeListeners() // those that Serve never saw
	return s.transport.Shutdown(ctx)
}
