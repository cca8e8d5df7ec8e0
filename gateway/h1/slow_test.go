package h1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// handed answers when it is told to, and says when that has returned.
type handed struct {
	body []byte
	tell chan struct{}
	done chan time.Duration
}

// Light implements Handler: each request has a goroutine.
func (*handed) Light(*Request) bool { return false }

func (h *handed) Serve(_ context.Context, _ *Request, a *Answer) bool {
	a.Status, a.Length = 200, int64(len(h.body))
	a.Chunks = append(a.Chunks, h.body)
	go func() {
		<-h.tell
		at := time.Now()
		infer.Flush(a.Done())
		h.done <- time.Since(at)
	}()
	return true
}

func (h *handed) Written(*Answer) {}

// Who brings an answer is not held up by a client that takes none of it; the client gets
// all of it when it does.
func TestSlowClientHoldsUpNobody(t *testing.T) {
	h := &handed{tell: make(chan struct{}), done: make(chan time.Duration, 1)}
	s := New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10}, h,
		slog.New(slog.DiscardHandler))
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4<<10) // without it the test shows less
		})
	}}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	for _, size := range []int{100, 60 << 10, 300 << 10, 2 << 20} { // tried and taken, tried and full, tried in leisure, not tried
		nc := dial(t, l.Addr().String())
		h.body = bytes.Repeat([]byte("0123456789"), size/10)
		for range 2 { // on one connection
			if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			h.tell <- struct{}{}
			if took := <-h.done; took > 5*time.Second {
				t.Errorf("%d bytes held up their bringer for %v", size, took)
			}
			resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, h.body) {
				t.Errorf("%d bytes: got %d, %v", len(h.body), len(got), err)
			}
		}
	}
	s.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
