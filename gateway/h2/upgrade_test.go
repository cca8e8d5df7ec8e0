package h2

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// upgrade is a connection that was taken over from HTTP/1.1 with a call, whose answer
// comes on stream 1.
func upgrade(t *testing.T, f *fixture, body []byte, settings string, lines ...string) *rawConn {
	t.Helper()
	c := rawDial(t, f.addr)
	head := append([]string{"POST /test.Echo/Echo HTTP/1.1", "Host: h", "Content-Type: application/grpc", "TE: trailers", "Upgrade: h2c",
		"Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: " + base64.RawURLEncoding.EncodeToString([]byte(settings)),
		"Content-Length: " + itoa(len(body))}, lines...)
	c.write(strings.Join(head, "\r\n") + "\r\n\r\n" + string(body))
	var answer strings.Builder
	for !strings.HasSuffix(answer.String(), "\r\n\r\n") {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c.nc, b); err != nil {
			t.Fatalf("%v behind %q", err, answer.String())
		}
		answer.Write(b)
	}
	if got := answer.String(); got != "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" {
		t.Fatalf("told %q", got)
	}
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings())
	return c
}

// TestUpgrade sees RFC 7540, 3.2: the call that asked is stream 1, its settings hold, they
// are acknowledged once with the client's own, and other calls follow.
func TestUpgrade(t *testing.T) {
	f := start(t, nil)
	c := upgrade(t, f, message("hello"), setting(4, 3), "X-Custom: 1")
	acks := 0
	for c.seen[1] == nil || len(c.seen[1].data) < 3 {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := fr.(*http2.SettingsFrame); ok && s.IsAck() {
			acks++
		}
	}
	if got := c.ping(); got != "alive" || len(c.seen[1].data) != 3 || acks != 1 {
		t.Errorf("%s; %d bytes through a window of 3; %d acknowledgements", got, len(c.seen[1].data), acks)
	}
	c.must(c.fr.WriteWindowUpdate(1, 100))
	if got := c.outcome(1); got != "0 hello" {
		t.Error(got)
	}
	c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}))
	c.call(3, "again")
	if got := c.outcome(3); got != "0 again" {
		t.Errorf("another call: %s", got)
	}
	c.headers(1, true, request()...)
	if got := c.outcome(5); got != "goaway STREAM_CLOSED" {
		t.Errorf("stream 1 again: %s", got)
	}
}

// TestUpgradeWindow sees that the body of the request that asked takes nothing off the
// window: a client that uses all that it was told of is not cut off.
func TestUpgradeWindow(t *testing.T) {
	f := start(t, func(c *Config) { c.StreamWindow, c.ConnectionWindow = 1<<20, 1<<16 })
	c := upgrade(t, f, message(strings.Repeat("x", 60000)), setting(4, 1<<20))
	c.must(c.fr.WriteWindowUpdate(0, 1<<20))
	if got := c.outcome(1); len(got) != 60002 {
		t.Fatalf("%d bytes", len(got))
	}
	left := 65535 // what a client has before it is told more
	c.headers(3, false, request()...)
	body := message(strings.Repeat("y", 200000))
	for len(body) > 0 {
		for left == 0 {
			fr, err := c.next()
			if err != nil {
				t.Fatal(err)
			}
			if w, ok := fr.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
				left += int(w.Increment)
			}
		}
		n := min(len(body), left, 16384)
		c.must(c.fr.WriteData(3, n == len(body), body[:n]))
		left -= n
		body = body[n:]
	}
	if got := c.outcome(3); len(got) != 200002 {
		t.Errorf("%.100s", got)
	}
}

func TestUpgradeFaults(t *testing.T) {
	f := start(t, nil)
	for name, want := range map[string]string{"HTTP2-Settings: AAUAAAAB": "400 Bad Request", "HTTP2-Settings: *": "400 Bad Request",
		"X: y": "505 HTTP Version Not Supported", "HTTP2-Settings: AAUAQAAA\r\nContent-Length: 70000": "505 HTTP Version Not Supported"} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, f.addr)
			c.write("POST /test.Echo/Echo HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n" + name + "\r\n\r\n")
			r, err := http.ReadResponse(bufio.NewReader(c.nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if b, err := io.ReadAll(r.Body); r.Status != want || err != nil || len(b) == 0 || !r.Close {
				t.Errorf("got %s %q, %v", r.Status, b, err)
			}
		})
	}
	t.Run("over TLS", func(t *testing.T) {
		cert, roots := certificate()
		f := start(t, func(c *Config) {
			c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
		})
		nc, err := tls.Dial("tcp", f.addr, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		c := newRaw(t, nc)
		c.write("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		if b, err := io.ReadAll(nc); err != nil || string(b) != oldAnswer {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// TestUpgradeTable sees that a client's blocks find the table empty behind the request
// that asked.
func TestUpgradeTable(t *testing.T) {
	f := start(t, nil)
	c := upgrade(t, f, message("one"), "", "Do: echo")
	c.outcome(1)
	for id := uint32(3); id < 9; id += 2 { // the first adds to the table, the others name what is there
		c.call(id, "x", "do", "fail")
		if got := c.outcome(id); !strings.HasPrefix(got, "9: ") {
			t.Errorf("stream %d: %s", id, got)
		}
	}
}
