package h1

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// plenty answers with more than a socket takes at once.
type plenty struct{ body []byte }

// Light implements Handler: each request has a goroutine.
func (*plenty) Light(*Request) bool { return false }

func (p *plenty) Serve(_ context.Context, _ *Request, a *Answer) bool {
	a.Status, a.Length = 200, int64(len(p.body))
	a.Chunks = append(a.Chunks, p.body)
	go func() { infer.Flush(a.Done()) }()
	return true
}

func (p *plenty) Written(*Answer) {}

// A connection that is told to end while its answer is written, and whose client sent the
// line end that old clients put behind a POST, or the beginning of a request, does not
// outlive that answer for long.
func TestShutdownWithPartOfRequest(t *testing.T) {
	for _, behind := range []string{"", "\r\n", "GET / HT"} {
		p := &plenty{make([]byte, 16<<20)}
		s := New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10}, p,
			slog.New(slog.DiscardHandler))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		rest := NewHandoff(l.Addr())
		if err := rest.Close(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- s.Serve(l, rest) }()
		nc := dial(t, l.Addr().String())
		if _, err := io.WriteString(nc, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"+behind); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool { return len(s.conns.All()) == 1 && s.conns.All()[0].phase() == writing })
		c := s.conns.All()[0]
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(ctx) }()
		until(t, c.isLast)
		resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(p.body)) {
			t.Errorf("behind it %q: %d bytes, %v", behind, n, err)
		}
		if err := <-down; err != nil {
			t.Errorf("behind it %q: %v", behind, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// until polls for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(end) {
			t.Fatal("it never comes")
		}
		runtime.Gosched()
	}
}
