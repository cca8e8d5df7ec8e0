package h1

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/loop"
)

// watcher hears of clients that leave, and reads what comes on connections that are
// parked: a loop, of which others may be served too.
type watcher struct{ at *loop.Loop }

// What epoll is to tell of a connection, once each time: that its client leaves; or that
// something has come, too.
const (
	leaves = unix.EPOLLRDHUP | unix.EPOLLET
	comes  = leaves | unix.EPOLLIN
)

// add begins to watch a connection; remove must come before its descriptor is closed by
// its own goroutine. Where that is impossible the connection is served all the same: its
// client's leaving is then seen when the answer is written.
func (w watcher) add(c *conn) {
	c.id = w.at.Register(c)
	if !w.watch(c) {
		w.forget(c)
	}
}

// watch watches one that has a net.Conn for its client's leaving.
func (w watcher) watch(c *conn) bool {
	done := false
	err := c.control(func(fd uintptr) { done = w.at.Control(unix.EPOLL_CTL_ADD, int(fd), c.id, leaves) == nil })
	return done && err == nil
}

// unwatch ends watch. One that was cut is closed, which took it out of the set; its
// descriptor may be another's by now, and control does not give it any more.
func (w watcher) unwatch(c *conn) {
	_ = c.control(func(fd uintptr) { _ = w.at.Control(unix.EPOLL_CTL_DEL, int(fd), 0, 0) })
}

func (w watcher) forget(c *conn) {
	w.at.Forget(c.id)
	c.id = 0
}

func (w watcher) remove(c *conn) {
	if c.id == 0 {
		return
	}
	w.forget(c)
	w.unwatch(c)
}

// Event is loop.Handler's: the client leaves, or there is a request on a connection that
// is parked.
func (c *conn) Event(events uint32, buf []byte) {
	leaves := events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	if !c.visit(buf, leaves) && leaves {
		c.left()
	}
}
