package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/h1"
	"github.com/sluice-serve/sluice/gateway/h2c"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
)

// Config is where and how a Server listens. Zero durations and sizes take the default.
type Config struct {
	listen.Config            // MaxConnections' default is 16384
	TLS           listen.TLS // with it HTTP/2 is negotiated by ALPN; the Unix socket speaks no TLS
	// Secure, with "h2" and "http/1.1" in NextProtos, is in the place of TLS; nil: its files
	// are read.
	Secure *tls.Config

	Transport         Transport
	ReadHeaderTimeout time.Duration // for a request's headers; default 10 s
	IdleTimeout       time.Duration // of a connection between requests; default 10 min
	// BodyTimeout and MinRate bound how slowly a body may come and a large answer may
	// be taken: the timeout and a second for each MinRate bytes. Defaults 30 s and
	// 16 KiB.
	BodyTimeout    time.Duration
	MinRate        int64
	MaxHeaderBytes int // of a request; default 64 KiB
	MaxStreams     int // of one HTTP/2 connection at a time; default 256
	// Loops serve resting connections of our own transport; none: it makes some.
	Loops []*loop.Loop
}

// Transport is what carries HTTP/1.1 in the clear. Everything else is net/http's.
type Transport string

// The transports: gateway/h1 of our own, and net/http.
const (
	TransportOwn     Transport = "sluice"
	TransportLibrary Transport = "library"
)

func (c Config) withDefaults() Config {
	if c.Transport == "" {
		c.Transport = TransportOwn
	}
	duration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	duration(&c.ReadHeaderTimeout, 10*time.Second)
	duration(&c.IdleTimeout, 10*time.Minute)
	duration(&c.BodyTimeout, 30*time.Second)
	if c.MinRate <= 0 {
		c.MinRate = 16 << 10
	}
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = 16384
	}
	if c.MaxStreams <= 0 {
		c.MaxStreams = 256
	}
	return c
}

// Server serves an API: HTTP/1.1 and HTTP/2, in the clear (h2c with prior knowledge or by
// an upgrade) or over TLS. Make it with NewServer, then Listen, Serve, Shutdown.
type Server struct {
	config  Config
	http    *http.Server
	handler *handler // of http
	log     *slog.Logger
	scarce  func() bool // memory of bodies or of answers is

	own *h1.Server // nil: the library carries everything
	tls *tls.Config

	mu        sync.Mutex
	listeners []listener
}

type listener struct {
	net.Listener
	tls bool
}

// NewServer makes a Server; nothing listens yet. log takes what net/http has to say of
// connections (nil: nothing).
func NewServer(c Config, api *API, log *slog.Logger) *Server {
	c = c.withDefaults()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	h := &handler{api: api, timeout: c.BodyTimeout, rate: c.MinRate}
	s := &Server{config: c, handler: h, log: log, scarce: api.bodies.Pressed, http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: c.ReadHeaderTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes,
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Protocols:         &p,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: c.MaxStreams, MaxReadFrameSize: 1 << 20,
			MaxReceiveBufferPerConnection: 16 << 20, MaxReceiveBufferPerStream: 4 << 20},
	}}
	s.http.RegisterOnShutdown(h.lingering.stop)
	if c.Transport == TransportOwn {
		s.own = h1.New(h1.Config{MaxHeaderBytes: c.MaxHeaderBytes, ReadHeaderTimeout: c.ReadHeaderTimeout, IdleTimeout: c.IdleTimeout,
			BodyTimeout: c.BodyTimeout, MinRate: c.MinRate, Loops: c.Loops, Scarce: s.scarce,
			Descriptors: c.Descriptors}, &plain{api: api}, log)
	}
	return s
}

// Listen opens the sockets. On an error none stays open.
func (s *Server) Listen(ctx context.Context) error {
	if s.tls = s.config.Secure; s.tls == nil && s.config.TLS.Cert != "" {
		t, err := s.config.TLS.Config("h2", "http/1.1")
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		s.tls = t
	}
	open, err := listen.Open(ctx, s.config.Config)
	if err != nil {
		return fmt.Errorf("http: %w", err)
	}
	for _, l := range open {
		s.add(l, s.tls != nil && l.Addr().Network() == "tcp")
	}
	return nil
}

// Add lets the server accept on one more listener; it is closed with the others. For
// tests and for sockets that were inherited.
func (s *Server) Add(l net.Listener) { s.add(l, false) }

func (s *Server) add(l net.Listener, tls bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, listener{l, tls})
}

func (s *Server) all() []listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]listener(nil), s.listeners...)
}

func (s *Server) closeListeners() {
	for _, l := range s.all() {
		_ = l.Close() // nothing was served on it
	}
}

// Addrs are the addresses listened on, TCP first.
func (s *Server) Addrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range s.all() {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// Serve accepts until Shutdown, which makes it return nil, or until ctx ends, which
// also ends every connection. It returns once all listeners are closed.
func (s *Server) Serve(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	s.http.TLSConfig = s.tls
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s.handler.relieve(done, s.scarce, s.log)
	}()
	defer func() {
		close(done)
		<-ended
	}()
	failed := make(chan error)
	serving := 0
	serve := func(f func() error) {
		serving++
		go func() { failed <- f() }()
	}
	for _, l := range s.all() {
		switch {
		case l.tls:
			serve(func() error { return s.http.ServeTLS(l.Listener, "", "") })
		case s.own == nil:
			serve(func() error { return s.http.Serve(h2c.Listener(l.Listener, s.config.MaxHeaderBytes)) })
		default:
			rest := h1.NewHandoff(l.Addr())
			serve(func() error { return s.own.Serve(l.Listener, rest) })
			serve(func() error { return s.http.Serve(h2c.Listener(rest, s.config.MaxHeaderBytes)) })
		}
	}
	var first error
	for range serving {
		err := <-failed
		if err != nil && !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = fmt.Errorf("http: %w", err)
			s.close() // one listener is lost: end the others too
		}
	}
	return first
}

// close ends every connection.
func (s *Server) close() {
	_ = s.http.Close() // what goes wrong with a connection that is cut is no news
	if s.own != nil {
		s.own.Close()
	}
}

// Shutdown stops accepting, tells clients to close (Connection: close, GOAWAY) and
// waits for the calls in flight. When ctx ends first it cuts them off and returns ctx's
// error.
func (s *Server) Shutdown(ctx context.Context) error {
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() {
		if errs[0] = s.http.Shutdown(ctx); errs[0] != nil {
			_ = s.http.Close() // the error is already known
		}
	})
	if s.own != nil {
		wg.Go(func() { errs[1] = s.own.Shutdown(ctx) })
	}
	wg.Wait()
	s.closeListeners() // those that Serve never saw
	return cmp.Or(errs[0], errs[1])
}
