package h1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/loop"
)

// unserved is a connection over loopback of which no goroutine runs, and its client.
func unserved(t *testing.T, s *Server) (*conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := dial(t, l.Addr().String())
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return newConn(s, nc, nil), client
}

func resting() *Server {
	return New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, BodyTimeout: 10 * time.Second,
		MinRate: 1 << 10}, &echo{}, slog.New(slog.DiscardHandler))
}

// A connection that was cut gives its descriptor back before its goroutine ends; the
// next to have it stays watched.
func TestRemoveAfterCut(t *testing.T) {
	s := resting()
	at, err := loop.New(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	w := watcher{at}
	first, _ := unserved(t, s)
	w.add(first)
	first.cut()
	next, client := unserved(t, s)
	w.add(next)
	w.remove(first)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "the news that the client has left", func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return next.gone
	})
}

// The time of a phase counts from that phase, however long the one before took.
func TestCheckCountsPhases(t *testing.T) {
	second := int64(time.Second)
	for _, c := range []struct {
		name string
		do   func(c *conn)
		cut  bool
	}{
		{"a head that begins after a long rest", func(c *conn) { c.check(0); c.enter(heading); c.check(50 * second); c.check(59 * second) }, false},
		{"a head that takes too long", func(c *conn) { c.enter(heading); c.check(0); c.check(11 * second) }, true},
		{"an answer after a long wait", func(c *conn) {
			c.enter(serving)
			c.check(0)
			c.check(99 * second)
			c.enter(writing)
			c.check(100 * second)
		}, false},
		{"an answer that nobody takes", func(c *conn) { c.enter(writing); c.check(0); c.check(11 * second) }, true},
		{"a large one that is taken slowly", func(c *conn) { c.enter(writing); c.moved.Store(9 << 10); c.check(0); c.check(18 * second) }, false},
		{"a rest", func(c *conn) { c.large = true; c.check(0); c.check(3 * second) }, false},
		{"a long rest", func(c *conn) { c.check(0); c.check(61 * second) }, true},
		{"a long wait", func(c *conn) { c.enter(serving); c.check(0); c.check(9999 * second) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, _ := unserved(t, resting())
			c.do(conn)
			if conn.gone != c.cut {
				t.Errorf("cut %v, want %v", conn.gone, c.cut)
			}
			if conn.large || conn.trimming != (c.name == "a rest") {
				t.Errorf("asked for its memory: %v", conn.trimming)
			}
		})
	}
}

// A body that comes to its end while the watcher gives it up leaves a connection that can
// be read on.
func TestBodyEndsAsItIsGivenUp(t *testing.T) {
	c, client := unserved(t, resting())
	if _, err := io.WriteString(client, "abcdefgh"); err != nil {
		t.Fatal(err)
	}
	c.body = Body{c: c, left: 4}
	b := &c.body
	if err := b.wait(); err != nil { // it is waited for
		t.Fatal(err)
	}
	state := c.state.Load()
	if n, err := c.nc.Read(make([]byte, 3)); n != 3 || err != nil { // 3 bytes came
		t.Fatal(n, err)
	}
	b.left = 1
	c.buf, c.r, c.w = []byte("d"), 0, 1 // and the last one
	c.giveUp(state)
	if _, err := b.Read(make([]byte, 4)); err != nil || !b.done {
		t.Fatalf("%v, done %v", err, b.done)
	}
	if n, err := c.nc.Read(make([]byte, 4)); n == 0 || err != nil {
		t.Errorf("reading on: %d bytes, %v", n, err)
	}
	c.giveUp(state) // too late
	if c.over {
		t.Error("a body that is over was given up")
	}
}

// A connection that rests gives its memory back and goes on as before.
func TestRestingConnectionIsSmall(t *testing.T) {
	addr, _, s := start(t, nil)
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	long := "GET /p HTTP/1.1\r\nHost: x\r\nX-Fill: " + strings.Repeat("f", 6000) + "\r\n\r\n"
	if _, err := io.WriteString(conn, long); err != nil {
		t.Fatal(err)
	}
	if got, err := answer(r); err != nil || got != "200 GET /p \n" {
		t.Fatal(got, err)
	}
	c := s.conns.All()[0]
	poll(t, "it rests", func() bool { return c.phase() == idle })
	c.trim(c.state.Load())
	// a request that overtakes the trim is answered from the memory that is there
	poll(t, "the memory is given back", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.trimming
	})
	if _, err := io.WriteString(conn, "GET /q HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := answer(r); err != nil || got != "200 GET /q \n" {
		t.Fatal(got, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "the connection ends", func() bool { return len(s.conns.All()) == 0 })
	if n := len(c.buf); n != firstBuffer {
		t.Errorf("it held %d bytes", n)
	}
}

// A request that comes as the watcher has a rest's memory back is answered, and so is one
// that comes as the server stops.
func TestTrimRaces(t *testing.T) {
	addr, _, s := start(t, nil)
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	for i := range 300 {
		if _, err := fmt.Fprintf(conn, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nhe", i); err != nil {
			t.Fatal(err)
		}
		for _, c := range s.conns.All() {
			c.mu.Lock()
			c.large = true
			c.mu.Unlock()
			c.trim(c.state.Load())
		}
		if _, err := io.WriteString(conn, "llo!"); err != nil {
			t.Fatal(err)
		}
		if got, err := answer(r); err != nil || got != fmt.Sprintf("200 POST /%d \nhello!", i) {
			t.Fatalf("request %d: %q %v", i, got, err)
		}
	}
}

// A head like the one before is not read again; its fields and framing are the same.
func TestRepeatedHeads(t *testing.T) {
	addr, _, _ := start(t, nil)
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	for i, send := range []string{"one", "two", "a longer one", "another....."} {
		if _, err := fmt.Fprintf(conn, "POST /p HTTP/1.1\r\nHost: x\r\nX-Test: %d\r\nContent-Length: %d\r\n\r\n%s", i/2, len(send), send); err != nil {
			t.Fatal(err)
		}
		if got, err := answer(r); err != nil || got != fmt.Sprintf("200 POST /p %d\n%s", i/2, send) {
			t.Fatalf("request %d: %q %v", i, got, err)
		}
	}
	// and with chunks, and with an end
	for range 3 {
		if _, err := io.WriteString(conn, "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := answer(r); err != nil || got != "200 POST /c \nab" {
			t.Fatal(got, err)
		}
	}
}

// panics is a handler with a fault.
type panics struct{ echo }

func (p *panics) Serve(ctx context.Context, r *Request, a *Answer) (later bool) {
	if r.Path == "/panic" {
		panic("a fault")
	}
	return p.echo.Serve(ctx, r, a)
}

// A fault of ours ends its own connection only.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	s := New(resting().cfg, &panics{}, slog.New(slog.NewTextHandler(&log, nil)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	addr := l.Addr().String()
	other, faulty := dial(t, addr), dial(t, addr)
	if _, err := io.WriteString(faulty, "GET /panic HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := answer(bufio.NewReader(faulty)); err == nil {
		t.Errorf("an answer: %q", got)
	}
	if _, err := io.WriteString(other, "GET /p HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := answer(bufio.NewReader(other)); err != nil || got != "200 GET /p \n" {
		t.Error(got, err)
	}
	s.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "a fault") {
		t.Errorf("log %q", log.String())
	}
}

func TestChunkSize(t *testing.T) {
	for _, c := range []struct {
		line string
		size int64
		ok   bool
	}{
		{"5", 5, true}, {"0", 0, true}, {"fF", 255, true}, {"5;a=b", 5, true}, {"5 ;a=b", 5, true}, {"5 \t", 5, true},
		{"", 0, false}, {"5 5", 0, false}, {"5 a=b", 0, false}, {"-5", 0, false}, {"+5", 0, false}, {"0x5", 0, false},
		{"1111111111111111", 0, false}, {"5;a=\x00", 0, false}, {";", 0, false}, {" 5", 0, false},
	} {
		if size, ok := chunkSize([]byte(c.line)); ok != c.ok || ok && size != c.size {
			t.Errorf("%q: %d %v, want %d %v", c.line, size, ok, c.size, c.ok)
		}
	}
}

// What was read of a connection that is given away is not kept when it has been read
// again.
func TestReplayIsDropped(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if err := a.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	r := &replay{Conn: a, read: []byte("abc")}
	got, err := io.ReadAll(r)
	if string(got) != "abc" || !timedOut(err) || r.read != nil {
		t.Errorf("%q %v, keeps %v", got, err, r.read)
	}
}
