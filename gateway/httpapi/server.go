package httpapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config is where and how a Server listens. Zero durations and sizes take the default.
type Config struct {
	Address   string // "" is every address
	Port      int    // 0: one that is free; -1: no TCP listener
	ReusePort bool   // let other processes listen on the same port (--reuse-http-port)
	// UnixSocket is the path of a socket to listen on as well; "" is none. A socket file
	// that nobody answers on is replaced.
	UnixSocket string
	TLS        TLSConfig

	ReadHeaderTimeout time.Duration // for a request's headers; default 10 s
	IdleTimeout       time.Duration // of a connection between requests; default 10 min
	// BodyTimeout and MinRate bound how slowly a body may come and a large answer may
	// be taken: the timeout and a second for each MinRate bytes. Defaults 30 s and
	// 16 KiB.
	BodyTimeout    time.Duration
	MinRate        int64
	MaxHeaderBytes int // of a request; default 64 KiB
	MaxConnections int // of each listener, further ones wait; default 16384
	MaxStreams     int // of one HTTP/2 connection at a time; default 256
}

// TLSConfig names PEM files; an empty Cert is no TLS. With TLS, HTTP/2 is negotiated by
// ALPN. The Unix socket speaks no TLS.
type TLSConfig struct {
	Cert, Key string
	ClientCA  string // if set, clients must show a certificate that it signed
}

func (c Config) withDefaults() Config {
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

// Server serves an API over net/http: HTTP/1.1 and HTTP/2, in the clear (h2c with prior
// knowledge) or over TLS. Make it with NewServer, then Listen, Serve, Shutdown.
type Server struct {
	config Config
	http   *http.Server
	tls    *tls.Config

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
	return &Server{config: c, http: &http.Server{
		Handler:           &handler{api: api, timeout: c.BodyTimeout, rate: c.MinRate},
		ReadHeaderTimeout: c.ReadHeaderTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes,
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Protocols:         &p,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: c.MaxStreams, MaxReadFrameSize: 1 << 20,
			MaxReceiveBufferPerConnection: 16 << 20, MaxReceiveBufferPerStream: 4 << 20},
	}}
}

// Listen opens the sockets. On an error none stays open.
func (s *Server) Listen(ctx context.Context) error {
	c := s.config
	if c.TLS.Cert != "" {
		t, err := loadTLS(c.TLS)
		if err != nil {
			return err
		}
		s.tls = t
	}
	if c.Port >= 0 {
		lc := net.ListenConfig{KeepAlive: 30 * time.Second}
		if c.ReusePort {
			lc.Control = reusePort
		}
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(c.Port)))
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		s.add(l, s.tls != nil)
	}
	if c.UnixSocket != "" {
		l, err := listenUnix(ctx, c.UnixSocket)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("http: %w", err)
		}
		s.add(l, false)
	}
	return nil
}

// Add lets the server accept on one more listener; it is closed with the others. For
// tests and for sockets that were inherited.
func (s *Server) Add(l net.Listener) { s.add(l, false) }

func (s *Server) add(l net.Listener, tls bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, listener{limit(l, s.config.MaxConnections), tls})
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
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	listeners := s.all()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			if l.tls {
				failed <- s.http.ServeTLS(l.Listener, "", "")
			} else {
				failed <- s.http.Serve(l.Listener)
			}
		}()
	}
	var first error
	for range listeners {
		err := <-failed
		if err != nil && !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = fmt.Errorf("http: %w", err)
			_ = s.http.Close() // one listener is lost: end the others too
		}
	}
	return first
}

// Shutdown stops accepting, tells clients to close (Connection: close, GOAWAY) and
// waits for the calls in flight. When ctx ends first it cuts them off and returns ctx's
// error.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	s.closeListeners() // those that Serve never saw
	if err != nil {
		_ = s.http.Close() // the error is already known
	}
	return err
}

func loadTLS(c TLSConfig) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("http: certificate: %w", err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if c.ClientCA == "" {
		return t, nil
	}
	pem, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("http: client certificates: %w", err)
	}
	t.ClientCAs = x509.NewCertPool()
	if !t.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("http: client certificates: %s holds no certificate", c.ClientCA)
	}
	t.ClientAuth = tls.RequireAndVerifyClientCert
	return t, nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); e != nil {
		return e
	}
	return err
}

// listenUnix replaces a socket file that a dead server left behind, and nothing else.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is no socket", path)
		}
		var d net.Dialer
		if c, err := d.DialContext(ctx, "unix", path); err == nil {
			_ = c.Close() // only asked whether somebody is there
			return nil, fmt.Errorf("another server listens on %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "unix", path)
}

// limit bounds a listener's open connections: over it, accepting waits.
func limit(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, slots: l.slots}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}
