package h2

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// frames are bytes of frames, for corpora.
func frames(t testing.TB, do func(c *rawConn)) []byte {
	var b bytes.Buffer
	c := newRaw(t, nil)
	c.fr = http2.NewFramer(&b, nil)
	c.fr.AllowIllegalWrites = true
	do(c)
	return b.Bytes()
}

// FuzzFrames sends what it is given behind a good preface. The server must close or go
// on, and when the client is gone nothing of it may be left: no goroutine (TestMain
// looks), no memory, no call.
func FuzzFrames(f *testing.F) {
	for _, do := range []func(c *rawConn){
		func(c *rawConn) { c.call(1, "x"); c.call(3, "y", "do", "fail") },
		func(c *rawConn) { c.call(1, "x", "do", "wait"); c.must(c.fr.WriteRSTStream(1, 8)) },
		func(c *rawConn) { c.headers(1, true, request("refuse", "x")...); c.headers(3, true, "a", "b") },
		func(c *rawConn) {
			c.headers(1, false, request(":path", "/grpc.health.v1.Health/Watch")...)
			c.must(c.fr.WriteDataPadded(1, true, []byte{0, 0, 0, 0, 0}, make([]byte, 4)))
		},
		func(c *rawConn) {
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, false, message("hello")[:7]))
			c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
			c.must(c.fr.WriteWindowUpdate(1, 100))
			c.must(c.fr.WritePing(false, [8]byte{1}))
			c.must(c.fr.WriteGoAway(0, 0, nil))
			c.headers(1, true, "trailer", "x")
		},
		func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, string(c.block(request()...)))
			c.frame(http2.FrameContinuation, 4, 1, "")
			c.must(c.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3}))
			c.must(c.fr.WriteData(1, true, append(message("a"), message("b")...)))
		},
	} {
		f.Add(frames(f, do))
	}
	fx := start(f, nil)
	own := servePipes(f, fx.s.Serve, fx.s.Stop)
	hello := []byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	f.Fuzz(func(t *testing.T, b []byte) {
		client, server := net.Pipe()
		own.conns <- server
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, client) // whatever it says
		}()
		if err := client.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := client.Write(append(bytes.Clone(hello), b...))
		var timeout net.Error
		if asTimeout(err, &timeout) {
			t.Error("the server reads no more and does not close")
		}
		_ = client.Close()
		<-read
		poll(t, "the server forgets the connection", func() bool {
			return len(fx.s.conns.All()) == 0 && fx.echo.running.Load() == 0 && fx.memory.out.Load() == 0
		})
	})
}

func asTimeout(err error, to *net.Error) bool {
	e, ok := err.(net.Error)
	*to = e
	return ok && e.Timeout()
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// servePipes serves connections that are pipes.
func servePipes(t testing.TB, serve func(net.Listener) error, stop func()) *pipes {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- serve(p) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// library is grpc-go with the echo of a fixture's.
func library(t testing.TB) *pipes {
	s := libraryServer()
	return servePipes(t, s.Serve, s.Stop)
}

// listenLibrary serves it on loopback.
func listenLibrary(t testing.TB) string {
	s := libraryServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return l.Addr().String()
}

func libraryServer() *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(1<<20))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo",
		Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var b []byte
			if err := dec(&b); err != nil {
				return nil, err
			}
			if v := metadata.ValueFromIncomingContext(ctx, "do"); len(v) > 0 && v[0] == "fail" {
				return nil, status.Error(codes.FailedPrecondition, "100 % wrong: ü\n")
			}
			return &b, nil
		}}}}, struct{}{})
	return s
}

// script turns bytes into the frames of one unary call. It never runs out: behind the
// last byte all are zero.
type script []byte

func (s *script) next(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := int((*s)[0])
	*s = (*s)[1:]
	return b % n
}

// changes are headers of calls that both transports should understand alike.
var changes = [][]string{nil, {"do", "fail"}, {":method", "GET"}, {"content-type", "text/plain"}, {"content-type", "application/grpc+proto"},
	{"content-type", "application/grpcx"}, {"content-type", "application/grpc;x"}, {"-content-type", ""}, {":path", "/test.Echo/None"},
	{":path", "/none/None"}, {":path", "none"}, {":path", "/"}, {"grpc-timeout", "0n"}, {"grpc-timeout", "20S"}, {"grpc-timeout", "99999999H"},
	{"grpc-encoding", "identity"}, {"grpc-encoding", "none"}, {"x-bin", "AAA"}, {"x-bin", "AAA="}, {"x-bin", "*"}, {"connection", "x"},
	{"-:authority", ""}, {"-:authority", "", "host", "h"}, {"host", "a", "host", "b"}, {"Upper", "x"}, {"value", "a\nb"}, {":other", "x"},
	{"grpc-accept-encoding", "gzip"}, {"user-agent", "x"}, {"te", "trailers"}, {"grpc-timeout", "x"}, {"grpc-timeout", "1"}}

// unary writes a call.
func (s *script) unary(c *rawConn) {
	var extra []string
	for range s.next(3) {
		extra = append(extra, changes[s.next(len(changes))]...)
	}
	block := c.block(request(extra...)...)
	body := message(string(bytes.Repeat([]byte{'a' + byte(s.next(26))}, s.next(60))))
	switch s.next(8) {
	case 1:
		body[0] = byte(s.next(4)) // the flag
	case 2:
		body = body[:s.next(len(body))]
	case 3:
		body[2] = 0x20 // too large
	case 4:
		body = nil
	}
	ends := s.next(2) // by a block alone or by DATA; grpc-go takes no trailers of clients
	if len(body) > 0 && ends == 0 {
		ends = 1
	}
	param := http2.HeadersFrameParam{StreamID: 1, EndStream: ends == 0, PadLength: uint8(s.next(256))}
	if s.next(4) == 1 {
		param.Priority = http2.PriorityParam{StreamDep: 3, Weight: 7}
	}
	for first := true; first || len(block) > 0; first = false {
		n := min(len(block), 20+s.next(256))
		if s.next(3) > 0 {
			n = len(block)
		}
		if param.BlockFragment, param.EndHeaders = block[:n], n == len(block); first {
			c.must(c.fr.WriteHeaders(param))
		} else {
			c.must(c.fr.WriteContinuation(1, param.EndHeaders, param.BlockFragment))
		}
		block = block[n:]
	}
	if ends == 0 {
		return
	}
	for {
		n := min(len(body), 1+s.next(64))
		last := n == len(body) && ends == 1
		if pad := s.next(40); pad > 20 {
			c.must(c.fr.WriteDataPadded(1, last, body[:n], make([]byte, pad)))
		} else {
			c.must(c.fr.WriteData(1, last, body[:n]))
		}
		if body = body[n:]; len(body) == 0 {
			break
		}
	}
}

// malformed says that a call was ended as HTTP's rules ask for, by its stream or by its
// connection.
func malformed(outcome string) bool {
	return outcome == "closed" || strings.HasPrefix(outcome, "reset") || strings.HasPrefix(outcome, "goaway")
}

// hosts is what grpc-go says of two hosts, before it looks whether the request is malformed
// in another way too; we look at that first.
const hosts = "400 13: num values of :authority: 1, num values of host: 2"

// FuzzBesideGRPCGo sends the same frames of one unary call to grpc-go and to us, and
// compares status, message and answer.
func FuzzBesideGRPCGo(f *testing.F) {
	for i := range changes {
		f.Add([]byte{1, byte(i)})
		f.Add([]byte{1, byte(i), 3, 20, 0, 1, 30, 1, 0, 1, 3, 0, 4, 30, 9})
	}
	for kind := range byte(8) {
		f.Add([]byte{0, 2, 40, kind, 2, 0, 0, 0, 10, 25, 3, 30})
	}
	fx := start(f, func(c *Config) { c.MaxMessage = 1 << 20 })
	own, lib := servePipes(f, fx.s.Serve, fx.s.Stop), library(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		bytes := frames(t, func(c *rawConn) { s := script(b); s.unary(c) })
		ask := func(to *pipes) string {
			client, server := net.Pipe()
			defer client.Close()
			to.conns <- server
			c := newRaw(t, client)
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				_, _ = client.Write(append([]byte(http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), bytes...)) // it may close before
			}()
			got := c.outcome(1)
			_ = client.Close()
			<-wrote
			return got
		}
		ours := ask(own)
		theirs := ask(lib)
		if ours != theirs && !(malformed(ours) && (malformed(theirs) || strings.HasPrefix(theirs, hosts))) {
			t.Errorf("we: %s\ngrpc-go: %s\n%q", ours, theirs, bytes)
		}
	})
}
