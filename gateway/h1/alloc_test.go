package h1

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// later answers on another goroutine, as who reads results does.
type later struct {
	quick
	work chan *Answer
}

func (l *later) Serve(ctx context.Context, r *Request, a *Answer) bool {
	l.quick.Serve(ctx, r, a)
	l.work <- a
	return true
}

// Light implements Handler.
func (l *later) Light(*Request) bool { return true }

func (l *later) run() {
	for a := range l.work {
		infer.Flush(a.Done())
	}
}

// TestAllocations holds what a small request allocates whose answer comes later: its
// context.
func TestAllocations(t *testing.T) {
	h := &later{quick: quick{body: [][]byte{make([]byte, 200)}}, work: make(chan *Answer, 1)}
	go h.run()
	defer close(h.work)
	s := New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10}, h,
		slog.New(slog.DiscardHandler))
	s.few = 0
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	nc := dial(t, l.Addr().String())
	request := []byte("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + string(make([]byte, 100)))
	answer := make([]byte, 1<<10)
	once := func() {
		if _, err := nc.Write(request); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(h.body[0]); { // the head and the body come in one write
			m, err := nc.Read(answer)
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
	}
	once()
	got := testing.AllocsPerRun(500, once)
	t.Logf("%.2f allocations for a request", got)
	if got > 1.5 {
		t.Errorf("a request takes %.2f allocations, at most 1", got)
	}
	s.Close()
	if err := <-ended; err != nil && err != io.EOF {
		t.Error(err)
	}
}
