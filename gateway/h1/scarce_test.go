package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
)

// large answers /N with N bytes: at once, or where the path says so later; and, where it says that, in pieces.
type large struct{ written atomic.Int64 }

func (*large) Light(*Request) bool { return true }

func (*large) Serve(_ context.Context, r *Request, a *Answer) bool {
	n, err := strconv.Atoi(r.Path[strings.LastIndexByte(r.Path, '/')+1:])
	if err != nil {
		a.Status = 400
		return false
	}
	a.Status, a.Length = 200, int64(n)
	if strings.Contains(r.Path, "pieces") {
		a.Source = &pieces{left: n}
	} else {
		a.Chunks = append(a.Chunks, bytes.Repeat([]byte("x"), n))
	}
	if strings.HasPrefix(r.Path, "/later") {
		_ = a.Done() // the goroutine that serves looks for it
		return true
	}
	return false
}

func (l *large) Written(a *Answer) {
	a.Source = nil
	l.written.Add(1)
}

// pieces is a Source of xs.
type pieces struct{ left int }

func (p *pieces) Next() []byte {
	n := min(p.left, 40_000)
	p.left -= n
	return bytes.Repeat([]byte("x"), n)
}

// startScarce serves large answers into small sockets; few says that memory is scarce.
func startScarce(t *testing.T, network string) (s *Server, addr net.Addr, few *atomic.Bool) {
	t.Helper()
	few = &atomic.Bool{}
	s = New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10,
		Scarce: few.Load}, &large{}, slog.New(slog.DiscardHandler))
	s.few, s.patience = 0, int64(1500*time.Millisecond)
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64<<10) }) // else more is taken at once
	}}
	at := "127.0.0.1:0"
	if network == "unix" {
		at = t.TempDir() + "/s"
	}
	l, err := small.Listen(t.Context(), network, at)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr(), few
}

// asks opens a connection with a small window and asks for an answer.
func asks(t *testing.T, addr net.Addr, path string) net.Conn {
	t.Helper()
	nc, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if tc, ok := nc.(*net.TCPConn); ok {
		err = tc.SetReadBuffer(64 << 10)
	}
	if err := errors.Join(err, nc.SetDeadline(time.Now().Add(30*time.Second))); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	return nc
}

// TestScarceCutsWhoTakesNothing has clients that don't read, and one that reads slowly: where
// memory is scarce the first are cut off, and the other one gets all of its answer.
func TestScarceCutsWhoTakesNothing(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			s, addr, few := startScarce(t, network)
			const lazy, size = 8, 4 << 20
			for i := range lazy {
				asks(t, addr, []string{"/now/", "/later/", "/now/pieces/", "/later/pieces/"}[i%4]+strconv.Itoa(size))
			}
			const part = 800 << 10
			slow := asks(t, addr, "/now/"+strconv.Itoa(part))
			poll(t, "all answers are being written", func() bool {
				n := 0
				for _, c := range s.conns.All() {
					if c.phase() == writing {
						n++
					}
				}
				return n == lazy+1
			})
			few.Store(true)
			resp, err := http.ReadResponse(bufio.NewReaderSize(slow, 4<<10), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			tick := time.NewTicker(20 * time.Millisecond) // 4 KB each time: 200 KB a second
			defer tick.Stop()
			got := int64(0)
			for err == nil {
				<-tick.C
				var n int64
				n, err = io.CopyN(io.Discard, resp.Body, 4<<10)
				got += n
			}
			if got != part || err != io.EOF {
				t.Errorf("who reads got %d of %d bytes: %v", got, part, err)
			}
			poll(t, "the others are cut off", func() bool { return len(s.conns.All()) <= 1 })
		})
	}
}

// TestEnoughMemoryCutsNobody sees that a client may take its time otherwise.
func TestEnoughMemoryCutsNobody(t *testing.T) {
	s, addr, _ := startScarce(t, "tcp")
	s.patience = 1
	const size = 4 << 20
	nc := asks(t, addr, "/now/"+strconv.Itoa(size))
	poll(t, "it is being written", func() bool {
		all := s.conns.All()
		return len(all) == 1 && all[0].phase() == writing
	})
	ticks := 0
	for date := s.date.Load(); ticks < 2; { // of the clock
		poll(t, "the clock", func() bool { return s.date.Load() != date })
		date = s.date.Load()
		ticks++
	}
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("got %d: %v", n, err)
	}
}

// TestScarceCutsTheOldestFirst sees the order, and that no more is cut than is needed.
func TestScarceCutsTheOldestFirst(t *testing.T) {
	s, addr, _ := startScarce(t, "tcp")
	for i := range 3 {
		asks(t, addr, "/now/"+strconv.Itoa((i+1)<<20))
	}
	poll(t, "all answers are being written", func() bool {
		all := s.conns.All()
		return len(all) == 3 && !slices.ContainsFunc(all, func(c *conn) bool { return c.phase() != writing })
	})
	var found []unmoved
	for _, c := range s.conns.All() {
		u := unmoved{c, c.state.Load(), listen.Untaken{Since: 100, Size: c.moved.Load()}}
		if u.Size == 1<<20 {
			u.Since-- // the smallest is the oldest
		}
		found = append(found, u)
	}
	questions := 0
	if n := cutOff(found, func() bool { questions++; return questions <= 2 }); n != 2 {
		t.Errorf("%d were cut off", n)
	}
	poll(t, "the largest of the rest is cut off too", func() bool {
		all := s.conns.All()
		return len(all) == 1 && all[0].moved.Load() == 2<<20
	})
}

// TestSource has answers that are made as they are written, at once and later, between others.
func TestSource(t *testing.T) {
	s, addr, _ := startScarce(t, "tcp")
	nc, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	in := bufio.NewReader(nc)
	for i, path := range []string{"/now/pieces/200000", "/later/pieces/200000", "/now/100", "/later/pieces/0",
		"/now/pieces/0", "/later/100", "/later/pieces/40000", "/later/pieces/1", "/now/pieces/1000000", "/later/pieces/3000000", "/later/200000"} {
		if _, err := fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, err := io.ReadAll(resp.Body)
		want, _ := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
		if err != nil || len(body) != want || strings.Trim(string(body), "x") != "" {
			t.Errorf("%s: %v, %d bytes, want %d", path, err, len(body), want)
		}
		if chunked := len(resp.TransferEncoding) > 0; chunked != strings.Contains(path, "pieces") {
			t.Errorf("%s: chunked %t", path, chunked)
		}
		handler, _ := s.handler.(*large)
		poll(t, "all answers are told of", func() bool { return handler.written.Load() == int64(i+1) })
	}
	for _, c := range s.conns.All() {
		if n := c.holds.Load(); n != 0 {
			t.Errorf("%d bytes are said to be held", n)
		}
	}
	if _, err := io.WriteString(nc, "GET /later/pieces/100000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || len(body) != 100_000 || !resp.Close {
		t.Errorf("the last one: %v, %d bytes, close %t", err, len(body), resp.Close)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after the last one: %v, want EOF", err)
	}
}
