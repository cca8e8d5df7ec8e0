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
	conns map[int32]*conn // by descriptor
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
		conns: map[int32]*conn{}}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	w.runs.Go(w.listen)
	w.runs.Go(w.tick)
	return w, nil
}

// add begins to watch a connection; remove must come before its descriptor is closed.
// Where that is impossible the connection is served all the same: its client's leaving
// is then seen when the answer is written.
func (w *watcher) add(c *conn) bool {
	added := false
	err := c.control(func(fd uintptr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
		if unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev) == nil {
			w.conns[int32(fd)] = c
			c.fd = int32(fd)
			added = true
		}
	})
	return err == nil && added
}

func (w *watcher) remove(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[c.fd] == c {
		delete(w.conns, c.fd)
		// it may be closed by its peer already; closing it removes it too
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, int(c.fd), nil)
	}
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
			w.mu.Lock()
			c := w.conns[events[i].Fd]
			w.mu.Unlock()
			if c != nil {
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
