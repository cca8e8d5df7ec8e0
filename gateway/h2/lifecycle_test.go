package h2

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// certificate is one of loopback's, with the roots that a client needs.
func certificate() (tls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.TLS.Certificates[0], roots
}

func TestTLS(t *testing.T) {
	cert, roots := certificate()
	f := start(t, func(c *Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	})
	cc := f.dial(t, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	in := random(t, 3<<20)
	if out, err := call(t.Context(), cc, in); err != nil || len(out) != len(in) {
		t.Errorf("over TLS: %d bytes, %v", len(out), err)
	}
	nc, err := tls.Dial("tcp", f.addr, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := newRaw(t, nc)
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings())
	c.must(c.fr.WritePing(false, [8]byte{}))
	c.frame(http2.FrameData, 0, 0, "x")
	if got := c.outcome(1); got != "goaway PROTOCOL_ERROR" {
		t.Errorf("a fault over TLS: %s", got)
	}
	none, err := tls.Dial("tcp", f.addr, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if got := newRaw(t, none).outcome(1); got != "closed" {
		t.Errorf("without ALPN: %s", got)
	}
}

// TestShutdownWhileTheyGreet sees that connections which have said nothing hold no
// shutdown up, and are not written to.
func TestShutdownWhileTheyGreet(t *testing.T) {
	cert, _ := certificate()
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": {Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}} {
		t.Run(name, func(t *testing.T) {
			f := start(t, func(c *Config) { c.TLS = config })
			nc, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			poll(t, "it is accepted", func() bool { return len(f.s.conns.All()) == 1 })
			before := time.Now()
			if err := f.s.Shutdown(t.Context()); err != nil || time.Since(before) > 5*time.Second {
				t.Errorf("Shutdown: %v after %v", err, time.Since(before))
			}
			if b, err := io.ReadAll(nc); err != nil || len(b) > 0 {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f := start(t, nil)
	go func() { ended <- f.s.Serve(l) }()
	f.addr = "unix:" + path
	in := random(t, 1<<20)
	if out, err := call(t.Context(), f.dial(t), in); err != nil || len(out) != len(in) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// TestOldClients sees that HTTP/1 gets an answer that says what is wrong.
func TestOldClients(t *testing.T) {
	f := start(t, nil)
	for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
		nc, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n"+upgrade+"\r\n"); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(nc)
		if err != nil || string(b) != oldAnswer || !strings.Contains(oldAnswer, "content-length: "+itoa(len(oldText))) {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// TestMaxConnectionAge sees both GOAWAYs, the call in flight answered behind them, and
// the connection's end.
func TestMaxConnectionAge(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxConnectionAge = 500 * time.Millisecond }) // in which a busy machine begins a call
	c := hello(t, f)
	c.headers(1, false, request()...)
	var last []uint32
	for len(last) < 2 {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch fr := fr.(type) {
		case *http2.GoAwayFrame:
			if fr.ErrCode != http2.ErrCodeNo {
				t.Fatal(fr)
			}
			last = append(last, fr.LastStreamID)
		case *http2.PingFrame:
			c.headers(3, false, request()...) // it was on its way
			c.must(c.fr.WritePing(true, fr.Data))
		}
	}
	if last[0] != maxStreamID || last[1] != 3 {
		t.Errorf("GOAWAYs name %v", last)
	}
	c.call(5, "late")
	for _, id := range []uint32{1, 3} {
		c.must(c.fr.WriteData(id, true, message("x")))
		if got := c.outcome(id); got != "0 x" {
			t.Errorf("stream %d: %s", id, got)
		}
	}
	if got := c.outcome(5); got != "reset REFUSED_STREAM" {
		t.Errorf("a call behind the last one: %s", got)
	}
	if got := c.outcome(7); got != "closed" {
		t.Errorf("the connection: %s", got)
	}
}

func TestKeepalive(t *testing.T) {
	f := start(t, func(c *Config) {
		c.KeepaliveTime, c.KeepaliveTimeout = 100*time.Millisecond, 2*time.Second // what a busy machine takes to answer
		c.PermitWithoutCalls, c.MaxPingsWithoutData = true, 0
	})
	c := hello(t, f)
	pings := 0
	for {
		fr, err := c.next()
		if err == errHang {
			t.Fatal("a client that answers no ping is not cut off")
		}
		if err != nil {
			break
		}
		if p, ok := fr.(*http2.PingFrame); ok {
			if pings++; pings < 3 {
				c.must(c.fr.WritePing(true, p.Data))
			}
		}
	}
	if pings != 3 {
		t.Errorf("%d pings", pings)
	}
}

// TestPingStrikes sees gRPC's rule for clients that ping too often: one more than the bound
// ends the connection, and the ping that is the first is none.
func TestPingStrikes(t *testing.T) {
	for most, want := range map[int]int{1: 3, 2: 4, 5: 7, 0: 0} {
		f := start(t, func(c *Config) { c.MaxPingStrikes = most })
		c := hello(t, f)
		acks := 0
		for sent := 1; sent <= 8; sent++ {
			c.must(c.fr.WritePing(false, [8]byte{}))
			var fr http2.Frame
			err := error(nil)
			for err == nil {
				if fr, err = c.next(); err != nil {
					break
				}
				if p, ok := fr.(*http2.PingFrame); ok && p.IsAck() {
					acks++
					break
				}
				if g, ok := fr.(*http2.GoAwayFrame); ok {
					if g.ErrCode != http2.ErrCodeEnhanceYourCalm || string(g.DebugData()) != "too_many_pings" || sent != want {
						t.Errorf("%d strikes: %v %q after ping %d, want it after %d", most, g.ErrCode, g.DebugData(), sent, want)
					}
					sent = 8
					break
				}
			}
			if err != nil {
				t.Fatalf("%d strikes: %v after ping %d", most, err, sent)
			}
		}
		if want == 0 && acks != 8 {
			t.Errorf("no bound: %d of 8 pings answered", acks)
		}
	}
}

// TestPingsWithoutData sees when a silent client is pinged: with a call or where that is
// permitted without, and no oftener than the bound while nothing else is sent.
func TestPingsWithoutData(t *testing.T) {
	for _, test := range []struct {
		name         string
		permit, call bool
		most, want   int
	}{{"no call", false, false, 0, 0}, {"no call, permitted", true, false, 2, 2}, {"a call", false, true, 3, 3}, {"no bound", true, true, 0, 5}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) {
				c.KeepaliveTime, c.KeepaliveTimeout = 50*time.Millisecond, time.Minute
				c.PermitWithoutCalls, c.MaxPingsWithoutData = test.permit, test.most
			})
			c := hello(t, f)
			if test.call {
				c.headers(1, false, request()...) // its message does not come
			}
			pings := 0
			for pings < 5 {
				wait := 20 * time.Second // what is wanted may take as long as a busy machine likes
				if pings >= test.want {
					wait = 500 * time.Millisecond
				}
				c.must(c.nc.SetReadDeadline(time.Now().Add(wait)))
				fr, err := c.fr.ReadFrame()
				if err != nil {
					break // the deadline
				}
				if p, ok := fr.(*http2.PingFrame); ok && !p.IsAck() {
					pings++
					c.must(c.fr.WritePing(true, p.Data))
				}
			}
			if pings != test.want {
				t.Errorf("%d pings, want %d", pings, test.want)
			}
		})
	}
}
