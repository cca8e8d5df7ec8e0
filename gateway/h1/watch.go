package h1

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watcher hears of clients that leave, and ticks.
type watcher struct {
	s    *Server
	fd   int      // of epoll
	file *os.File // the same, in Go's poller; Fd() would take it out
	raw  syscall.RawConn
	stop chan struct{}
	once sync.Once
	runs sync.WaitGroup

	mu    sync.Mutex
	last  uint64
	conns map[uint64]*conn // by id: an event may be older than its descriptor's next use
}

func newWatcher(s *Server) (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(fd))
	}
	w := &watcher{s: s, fd: fd, file: os.NewFile(uintptr(fd), "epoll"), stop: make(chan struct{}),
		conns: map[uint64]*conn{}}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	w.runs.Go(w.listen)
	w.runs.Go(w.tick)
	return w, nil
}

// add begins to watch a connection; remove must come before its descriptor is closed by
// its own goroutine. Where that is impossible the connection is served all the same: its
// client's leaving is then seen when the answer is written.
func (w *watcher) add(c *conn) {
	_ = c.control(func(fd uintptr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.last++
		ev := event(w.last)
		if unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev) == nil {
			w.conns[w.last] = c
			c.id = w.last
		}
	})
}

// event is what epoll is told, and tells, of the connection with the id.
func event(id uint64) unix.EpollEvent {
	return unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
}

// idOf is the id in an event.
func idOf(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

func (w *watcher) remove(c *conn) {
	if c.id == 0 {
		return
	}
	w.mu.Lock()
	delete(w.conns, c.id)
	w.mu.Unlock()
	// one that was cut is closed, which took it out of the set; its descriptor may be
	// another's by now, and control does not give it any more
	_ = c.control(func(fd uintptr) {
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, int(fd), nil)
	})
}

// of is the connection that an event is of; nil: it is not watched any more.
func (w *watcher) of(e *unix.EpollEvent) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[idOf(e)]
}

// listen waits for clients that leave.
func (w *watcher) listen() {
	events := make([]unix.EpollEvent, 64)
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), events, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil {
			return // closed
		}
		for i := range max(n, 0) {
			if c := w.of(&events[i]); c != nil {
				c.left()
			}
		}
	}
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
		_ = w.file.Close() // ends listen
	})
	w.runs.Wait()
}
