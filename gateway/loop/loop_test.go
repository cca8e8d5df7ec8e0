package loop

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func start(t *testing.T) *Loop {
	t.Helper()
	l, err := New(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// bell is an eventfd that was rung.
func bell(t *testing.T, rung uint) int {
	t.Helper()
	fd, err := unix.Eventfd(rung, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func ring(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Error(err)
	}
}

type handler func(events uint32, buf []byte)

func (h handler) Event(events uint32, buf []byte) { h(events, buf) }

// Events go to who has the id, and a handler that panics gets its next one.
func TestEvents(t *testing.T) {
	l := start(t)
	fd := bell(t, 0)
	told := make(chan uint32)
	n := 0
	id := l.Register(handler(func(events uint32, buf []byte) {
		if n++; n == 1 {
			defer func() { told <- 0 }()
			panic("a fault")
		}
		if len(buf) != Buffer {
			t.Errorf("a buffer of %d bytes", len(buf))
		}
		told <- events
	}))
	if err := l.Control(unix.EPOLL_CTL_ADD, fd, id, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	ring(t, fd)
	<-told
	ring(t, fd)
	if events := <-told; events != unix.EPOLLIN {
		t.Errorf("told of %#x", events)
	}
}

// An event that was fetched before its handler was forgotten is nobody's, also when the
// descriptor is another's by then.
func TestStaleEvent(t *testing.T) {
	l := start(t)
	busy, first, second := bell(t, 1), bell(t, 1), bell(t, 0)
	holds, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var wrong atomic.Bool
	old := l.Register(handler(func(uint32, []byte) { wrong.Store(true) }))
	id := l.Register(handler(func(uint32, []byte) {
		close(holds)
		<-release
	}))
	if err := l.Control(unix.EPOLL_CTL_ADD, busy, id, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	<-holds
	if err := l.Control(unix.EPOLL_CTL_ADD, first, old, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	l.Forget(old) // it stays in the set
	next := l.Register(handler(func(uint32, []byte) { close(done) }))
	if next == old {
		t.Fatal("an id was given twice")
	}
	if err := l.Control(unix.EPOLL_CTL_ADD, second, next, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	close(release)
	ring(t, second)
	<-done
	if wrong.Load() {
		t.Error("an event came to one who was forgotten")
	}
}

// source is a counter of news in memory, and a bell that is rung when it was asked for.
type source struct {
	fd      int
	left    atomic.Int64
	armed   atomic.Bool
	served  atomic.Int64
	ended   chan struct{}
	panics  bool
	burst   *Burst
	tracked infer.Dispatcher
}

func (s *source) Ready() bool {
	s.armed.Store(true)
	return s.left.Load() != 0
}

func (s *source) Run() (more, woke bool) {
	s.armed.Store(false)
	if s.panics {
		s.panics = false
		panic("a fault")
	}
	n := s.left.Load()
	if n < 0 {
		close(s.ended)
		return false, false
	}
	if n > 0 {
		s.left.Add(-1)
		s.served.Add(1)
		if s.burst != nil && !s.burst.Add(s.tracked, infer.Now()) {
			s.tracked.Dispatch()
		}
	}
	return true, false
}

func (s *source) add(t *testing.T, n int64) {
	s.left.Add(n)
	if s.armed.Swap(false) {
		ring(t, s.fd)
	}
}

// Nothing that comes through memory is missed, whether the loop sleeps or not, and a source
// that has ended is not called again.
func TestSources(t *testing.T) {
	l := start(t)
	s := &source{fd: bell(t, 0), ended: make(chan struct{}), panics: true}
	if err := l.Attach(s.fd, s); err != nil {
		t.Fatal(err)
	}
	const all = 20000
	for range all / 2 {
		s.add(t, 2)
	}
	for s.served.Load() < all {
		runtime.Gosched()
	}
	s.left.Store(-1)
	if s.armed.Swap(false) {
		ring(t, s.fd)
	}
	<-s.ended
	l.Detach(s.fd)
	other := &source{fd: bell(t, 0), ended: make(chan struct{})}
	if err := l.Attach(other.fd, other); err != nil {
		t.Fatal(err)
	}
	other.add(t, -1)
	<-other.ended // ended of s was not closed again
}

type told chan struct{}

func (c told) Dispatch() { c <- struct{}{} }

// What was read is dispatched before the loop sleeps.
func TestBurstEnds(t *testing.T) {
	l := start(t)
	c := make(told, 1)
	s := &source{fd: bell(t, 0), ended: make(chan struct{}), burst: l.Burst(), tracked: c}
	if err := l.Attach(s.fd, s); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.add(t, 1)
		<-c
	}
}
