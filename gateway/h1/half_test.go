package h1

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/loop"
)

// closesBehind sends a light request and the end of what it sends as one, so that one event
// tells of both.
func closesBehind(t *testing.T, path string) (k *keeper, c *net.TCPConn, r *bufio.Reader) {
	t.Helper()
	k = newKeeper()
	addr, s := startKeeper(t, k)
	c = dial(t, addr)
	r = bufio.NewReader(c)
	ask(t, c, "/light/now")
	hear(t, r)
	waitParked(t, s, 1)
	release := hold(t, s.own[0]) // it tells of nothing meanwhile
	ask(t, c, path)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	release()
	return k, c, r
}

// holder is a loop's handler that keeps it.
type holder struct{ holds, release chan struct{} }

func (h *holder) Event(uint32, []byte) {
	close(h.holds)
	<-h.release
}

// hold keeps a loop busy until release is called.
func hold(t *testing.T, l *loop.Loop) (release func()) {
	t.Helper()
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{holds: make(chan struct{}), release: make(chan struct{})}
	id := l.Register(h)
	if err := l.Control(unix.EPOLL_CTL_ADD, fd, id, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	<-h.holds
	return func() {
		l.Forget(id)
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
		close(h.release)
	}
}

// A client that sends a request and nothing more is answered, and its connection ends.
func TestParkedHalfClosed(t *testing.T) {
	for range 20 {
		_, _, r := closesBehind(t, "/light/now")
		if got := hear(t, r); string(got) != "/light/now" {
			t.Fatalf("answer %q", got)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Fatalf("behind the answer: %v", err)
		}
	}
}

// A client that leaves as soon as it has sent its request ends it.
func TestParkedLeavesAtOnce(t *testing.T) {
	for range 20 {
		k, _, _ := closesBehind(t, "/light/later")
		h := <-k.begun
		<-h.ctx.Done()
		h.answer([]byte("in vain"))
	}
}

// With one processor connections keep their goroutines.
func TestOneProcessorParksNobody(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10},
		newKeeper(), slog.New(slog.DiscardHandler))
	s.open.Store(1000)
	c := &conn{s: s, id: 1, small: true}
	if c.parks() {
		t.Error("a connection is parked")
	}
	if s.few = atFew(2, false); !c.parks() {
		t.Error("with two none is")
	}
}
