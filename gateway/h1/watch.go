package h1

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// watcher hears of clients that leave, and reads what comes on connections that are parked.
// Its goroutine waits in epoll itself, with a thread for it: in Go's poller each packet
// would wake another thread, which finds nothing to do while the watcher is at it.
type watcher struct {
	s    *Server
	fd   int // of epoll
	bell int // an eventfd in it that ends listen
	stop chan struct{}
	once sync.Once
	runs sync.WaitGroup

	burst infer.Burst // what was read and is not executed yet

	mu    sync.Mutex
	last  uint64
	conns map[uint64]*conn // by id: an event may be older than its descriptor's next use
}

func newWatcher(s *Server) (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(fd))
	}
	w := &watcher{s: s, fd: fd, bell: bell, stop: make(chan struct{}), conns: map[uint64]*conn{}}
	if err := w.control(unix.EPOLL_CTL_ADD, bell, 0, unix.EPOLLIN); err != nil {
		return nil, errors.Join(err, unix.Close(bell), unix.Close(fd))
	}
	w.runs.Go(w.listen)
	return w, nil
}

// What epoll is to tell of a connection, once each time: that its client leaves; or that
// something has come, too.
const (
	leaves = unix.EPOLLRDHUP | unix.EPOLLET
	comes  = leaves | unix.EPOLLIN
)

// event is what epoll is told, and tells, of the connection with the id.
func event(id uint64, of uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: of, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
}

// idOf is the id in an event.
func idOf(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// control changes epoll's set.
func (w *watcher) control(op, fd int, id uint64, of uint32) error {
	ev := event(id, of)
	if err := unix.EpollCtl(w.fd, op, fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// add begins to watch a connection; remove must come before its descriptor is closed by
// its own goroutine. Where that is impossible the connection is served all the same: its
// client's leaving is then seen when the answer is written.
func (w *watcher) add(c *conn) {
	w.mu.Lock()
	w.last++
	c.id = w.last
	w.conns[c.id] = c
	w.mu.Unlock()
	if !w.watch(c) {
		w.forget(c)
	}
}

// watch watches one that has a net.Conn for its client's leaving.
func (w *watcher) watch(c *conn) bool {
	done := false
	err := c.control(func(fd uintptr) { done = w.control(unix.EPOLL_CTL_ADD, int(fd), c.id, leaves) == nil })
	return done && err == nil
}

// unwatch ends watch. One that was cut is closed, which took it out of the set; its
// descriptor may be another's by now, and control does not give it any more.
func (w *watcher) unwatch(c *conn) {
	_ = c.control(func(fd uintptr) { _ = w.control(unix.EPOLL_CTL_DEL, int(fd), 0, 0) })
}

func (w *watcher) forget(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c.id)
	c.id = 0
}

func (w *watcher) remove(c *conn) {
	if c.id == 0 {
		return
	}
	w.forget(c)
	w.unwatch(c)
}

// of is the connection that an event is of; nil: it is not watched any more.
func (w *watcher) of(e *unix.EpollEvent) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[idOf(e)]
}

// listen waits for clients that leave, and for requests on connections that are parked.
func (w *watcher) listen() {
	events := make([]unix.EpollEvent, 128)
	buf := make([]byte, turnBuffer)
	defer w.burst.Close()
	for {
		n, err := w.wait(events)
		if err != nil && err != unix.EINTR {
			w.s.log.Error("HTTP: connections are not watched any more", "error", err)
			return
		}
		for i := range max(n, 0) {
			e := &events[i]
			if idOf(e) == 0 {
				return
			}
			leaves := e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
			if c := w.of(e); c != nil && !c.visit(buf, leaves) && leaves {
				c.left()
			}
		}
	}
}

// wait waits for events. What was read before and not executed yet is, once there are none.
func (w *watcher) wait(events []unix.EpollEvent) (int, error) {
	if w.burst.Holds() {
		if n, err := unix.EpollWait(w.fd, events, 0); n > 0 || err != nil {
			return n, err
		}
	}
	w.burst.Close()
	n, err := unix.EpollWait(w.fd, events, -1)
	w.burst.Open()
	return n, err
}

func (w *watcher) tick() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case at := <-t.C:
			w.s.tick(at)
		case <-w.stop:
			return
		}
	}
}

func (w *watcher) close() {
	w.once.Do(func() {
		close(w.stop)
		one := [8]byte{1}
		if _, err := unix.Write(w.bell, one[:]); err != nil {
			w.s.log.Error("HTTP: the watcher does not hear", "error", err)
			return
		}
		w.runs.Wait()
		if err := errors.Join(unix.Close(w.bell), unix.Close(w.fd)); err != nil {
			w.s.log.Error("HTTP: the watcher was not closed", "error", err)
		}
	})
}
