// Package loop has goroutines that serve many things each: they wait in epoll themselves,
// with a thread for it. In Go's poller each packet would wake another thread, which finds
// nothing to do while the first is at it; and who waits for workers and for clients in one
// place is woken once for what would wake two.
//
// A Loop calls its Handlers when epoll tells of their descriptors, and its Sources whenever
// it is awake: those look for news in memory, and have a descriptor only to wake it. None
// of them may wait for anything. What they read goes into the loop's Burst, which ends
// when nothing more is there.
package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Handler is told of what happens on its descriptor.
type Handler interface {
	// Event runs on the loop's goroutine, with what epoll tells. It may read into buf, whose
	// memory is the next one's when it returns.
	Event(events uint32, buf []byte)
}

// Source has news that come through memory.
type Source = interface {
	// Run serves what there is. more is false when it has ended and is not to be called
	// again; woke says that it has made a goroutine ready.
	Run() (more, woke bool)
	// Ready says that there is something to run for. Once it has said no, its descriptor
	// tells when there is.
	Ready() bool
}

// Buffer is what a handler can read at once.
const Buffer = 32 << 10

// Loop is one such goroutine. Its methods are safe for concurrent use, but Close.
type Loop struct {
	log   *slog.Logger
	fd    int // of epoll
	bell  int // an eventfd in it that wakes the loop
	runs  sync.WaitGroup
	burst Burst
	stop  atomic.Bool

	leisure *leisure

	mu       sync.Mutex
	last     uint64
	handlers map[uint64]Handler // by id: an event may be older than its descriptor's next use
	fresh    []Source           // attached, and not seen by the loop yet

	sources []Source // the loop's own
}

// New starts a loop, beside others that serve the same connections. log takes what can't be
// told otherwise.
func New(log *slog.Logger, beside ...*Loop) (*Loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(fd))
	}
	l := &Loop{log: log, fd: fd, bell: bell, handlers: map[uint64]Handler{}, leisure: new(leisure)}
	if len(beside) > 0 {
		l.leisure = beside[0].leisure
	}
	if err := l.Control(unix.EPOLL_CTL_ADD, bell, 0, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return nil, errors.Join(err, unix.Close(bell), unix.Close(fd))
	}
	l.runs.Go(l.run)
	return l, nil
}

// Burst is what the loop's handlers read; nil where l is.
func (l *Loop) Burst() *Burst {
	if l == nil {
		return nil
	}
	return &l.burst
}

// Register gives a handler the id that its descriptor's events have, from 1. Control tells
// epoll of the descriptor.
func (l *Loop) Register(h Handler) (id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.handlers[l.last] = h
	return l.last
}

// Forget ends the calls of a handler; one may be under way. Its descriptor must leave
// epoll's set by Control, or be closed.
func (l *Loop) Forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.handlers, id)
}

// Control changes epoll's set: op is EPOLL_CTL_…, of are the events.
func (l *Loop) Control(op, fd int, id uint64, of uint32) error {
	ev := unix.EpollEvent{Events: of, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	if err := unix.EpollCtl(l.fd, op, fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// Attach lets the loop run a source, whose descriptor fd becomes readable when it has news.
// The descriptor is not read, and stays its owner's. A loop that was closed takes none.
func (l *Loop) Attach(fd int, s Source) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop.Load() { // its descriptors may be another's
		return errors.New("the loop is closed")
	}
	if err := l.Control(unix.EPOLL_CTL_ADD, fd, 0, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return err
	}
	l.fresh = append(l.fresh, s)
	l.ring()
	return nil
}

// Detach takes the descriptor of a source that has ended, or is told to, out of epoll's set.
func (l *Loop) Detach(fd int) { _ = l.Control(unix.EPOLL_CTL_DEL, fd, 0, 0) } // it may be closed, which took it out

func (l *Loop) ring() {
	one := [8]byte{1}
	if _, err := unix.Write(l.bell, one[:]); err != nil && err != unix.EAGAIN { // EAGAIN: it has rung often, and is heard
		l.log.Error("a loop does not hear", "error", err)
	}
}

// Close ends the loop and waits for it. Nothing that it served is told: sources that have
// not ended are not called any more.
func (l *Loop) Close() error {
	l.mu.Lock()
	stopped := l.stop.Swap(true)
	l.mu.Unlock()
	if stopped {
		return nil
	}
	l.ring()
	l.runs.Wait()
	return errors.Join(unix.Close(l.bell), unix.Close(l.fd))
}

func (l *Loop) run() {
	events := make([]unix.EpollEvent, 128)
	buf := make([]byte, Buffer)
	defer l.burst.Close()
	for !l.stop.Load() {
		n, err := l.wait(events)
		if err != nil && err != unix.EINTR {
			// None but a fault of ours can have this end, and all that the loop serves would
			// hang, while the process says that it is well: it ends.
			panic(fmt.Sprintf("a loop can't wait for events: %v", err))
		}
		l.burst.Open()
		served := false
		for i := range max(n, 0) {
			e := &events[i]
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if h := l.of(id); h != nil {
				served = true
				l.event(h, e.Events, buf)
			}
		}
		if served && !l.leisure.served.Load() {
			l.leisure.served.Store(true)
		}
		kept := l.sources[:0]
		for _, s := range l.sources {
			if l.news(s) {
				kept = append(kept, s)
			}
		}
		clear(l.sources[len(kept):])
		l.sources = kept
	}
}

// of is the handler that an event is for; nil: none any more.
func (l *Loop) of(id uint64) Handler {
	if id == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.handlers[id]
}

// event calls a handler. One that panics is called again for its next event: handlers
// mind their own faults.
func (l *Loop) event(h Handler, events uint32, buf []byte) {
	defer l.survive()
	h.Event(events, buf)
}

// news runs a source, and says that there may be more of it. One that panics is run again.
func (l *Loop) news(s Source) (more bool) {
	defer l.survive()
	more = true
	var woke bool
	if more, woke = s.Run(); woke {
		l.burst.Woke()
	}
	return more
}

// survive tells of a panic on a goroutine of its own: who reads the log may take his time.
func (l *Loop) survive() {
	if p := recover(); p != nil {
		go l.log.Error("a loop met a fault", "panic", p, "stack", string(debug.Stack()))
		l.burst.Woke()
	}
}

// wait waits for events, or for news of a source. What was read before and not executed
// yet is, once there are none.
func (l *Loop) wait(events []unix.EpollEvent) (int, error) {
	if l.burst.Holds() {
		if n, err := unix.EpollWait(l.fd, events, 0); n != 0 || err != nil {
			return n, err
		}
	}
	l.burst.Close()
	if l.burst.Yields() {
		runtime.Gosched() // the processor goes with this goroutine into the kernel
	}
	l.adopt()
	for _, s := range l.sources {
		if s.Ready() {
			return unix.EpollWait(l.fd, events, 0)
		}
	}
	return unix.EpollWait(l.fd, events, -1)
}

// adopt takes in the sources that were attached.
func (l *Loop) adopt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sources = append(l.sources, l.fresh...)
	clear(l.fresh)
	l.fresh = l.fresh[:0]
}
