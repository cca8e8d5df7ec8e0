package listen

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// accepted is a client with its connection as it was accepted.
type accepted struct {
	client, server net.Conn
	since          int64
	shed           atomic.Bool
}

// Shed closes both ends, whose descriptors are of one process here.
func (p *accepted) Shed(since int64) bool {
	if since != p.since || p.shed.Swap(true) {
		return false
	}
	_, _ = p.client.Close(), p.server.Close()
	return true
}

// lowest is the lowest descriptor that is free.
func lowest(t *testing.T) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Close(p[0]), unix.Close(p[1])
	return min(p[0], p[1])
}

// New connections are accepted for those that have been resting longest, below the ceiling.
// Who rests for a moment only is left alone.
func TestDescriptors(t *testing.T) {
	var log bytes.Buffer
	d := &Descriptors{ceiling: lowest(t) + 24, reserve: 16, batch: 4, log: slog.New(slog.NewTextHandler(&log, nil))}
	open, err := Open(t.Context(), Config{Address: "127.0.0.1", Descriptors: d})
	if err != nil {
		t.Fatal(err)
	}
	l := open[0]
	defer l.Close()
	var pairs []*accepted
	d.Add(func(now int64, to []Resting) []Resting {
		for i, p := range pairs {
			if i%5 == 0 {
				to = append(to, Resting{now, p}) // its Shed would say no, and it is not asked
			} else if !p.shed.Load() {
				to = append(to, Resting{p.since, p})
			}
		}
		return to
	})
	begin := infer.Now() - 10*leastRest
	for i := range 60 {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if n := descriptorOf(Underneath(server)); n >= d.ceiling {
			t.Errorf("connection %d has descriptor %d, the ceiling is %d", i, n, d.ceiling)
		}
		pairs = append(pairs, &accepted{client: client, server: server, since: begin + int64(i)})
		if i%5 == 0 { // who lives; a dozen would fill all
			_ = client.Close()
		}
		if _, err := server.Write([]byte("x")); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	last := false
	for i, p := range pairs {
		shed := p.shed.Load()
		switch {
		case i%5 == 0 && shed:
			t.Errorf("connection %d was closed, which had just been used", i)
		case i%5 != 0 && shed && last:
			t.Errorf("connection %d was closed, and one that rested longer was not", i)
		case i%5 != 0:
			last = !shed
		}
		_, _ = p.client.Close(), p.server.Close()
	}
	if !pairs[1].shed.Load() || pairs[59].shed.Load() {
		t.Errorf("the first was closed: %v, the last: %v", pairs[1].shed.Load(), pairs[59].shed.Load())
	}
	if n := strings.Count(log.String(), "\n"); n == 0 || n > 3 {
		t.Errorf("%d lines in the log, want one a second:\n%s", n, &log)
	}
}

// Where nothing rests a new connection is closed, so that the reserve stays.
func TestDescriptorsRefuse(t *testing.T) {
	d := &Descriptors{ceiling: lowest(t) + 2, reserve: 16, batch: 4, log: slog.New(slog.DiscardHandler)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { close(done) })
	if _, ok := d.admit(server, done); ok {
		t.Error("a connection was admitted")
	}
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client read %v, want EOF", err)
	}
	if c, ok := (*Descriptors)(nil).admit(client, nil); c != client || !ok {
		t.Error("none are kept back, and a connection was refused")
	}
}
