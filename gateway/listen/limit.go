package listen

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// Count counts connections. The zero value is ready.
type Count struct {
	Open     atomic.Int64
	Accepted atomic.Uint64
}

// limited is a listener with a bound on its open connections, and a count of them.
type limited struct {
	net.Listener
	slots chan struct{} // nil: no bound
	count *Count
	files *Descriptors // nil: none are kept back
	done  chan struct{}
	once  sync.Once
}

// limit bounds l to n connections; 0: no bound. count may be nil.
func limit(l net.Listener, n int, count *Count) *limited {
	if count == nil {
		count = &Count{}
	}
	limited := &limited{Listener: l, count: count, done: make(chan struct{})}
	if n > 0 {
		limited.slots = make(chan struct{}, n)
	}
	return limited
}

// Accept waits for a slot, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	if l.slots != nil {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
	}
	c, err := l.accept()
	if err != nil {
		l.free()
		return nil, err
	}
	l.count.Open.Add(1)
	l.count.Accepted.Add(1)
	return &counted{Conn: c, l: l, remote: remoteOf(c)}, nil
}

// accept waits for a connection that there is a descriptor for.
func (l *limited) accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if l.files != nil && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) {
				l.files.makeRoom(infer.Now())
			}
			return nil, err
		}
		if c, ok := l.files.admit(c, l.done); ok {
			return c, nil
		}
	}
}

// Close ends Accept too where it waits for a slot.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

func (l *limited) free() {
	if l.slots != nil {
		<-l.slots
	}
}

// counted is a connection that has a slot.
type counted struct {
	net.Conn
	l      *limited
	remote net.Addr
	once   sync.Once
}

// RemoteAddr is a *PeerAddr where the connection came over a Unix socket, and a
// *LoopbackAddr where it came over TCP from a loopback address.
func (c *counted) RemoteAddr() net.Addr { return c.remote }

// Close gives the slot back.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.l.count.Open.Add(-1)
		c.l.free()
	})
	return err
}

// Underneath is the connection below one that a listener of Open gave, for what only its
// own type can do: writing several pieces in one call, watching its descriptor. Who
// closes it closes the outer one.
func Underneath(c net.Conn) net.Conn {
	if n, ok := c.(*counted); ok {
		return n.Conn
	}
	return c
}
