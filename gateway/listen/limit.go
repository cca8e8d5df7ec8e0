package listen

import (
	"net"
	"sync"
)

// limited is a listener with a bound on its open connections.
type limited struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once
}

func limit(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

// Accept waits for a slot, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &counted{Conn: c, l: l}, nil
}

// Close ends Accept too where it waits for a slot.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// counted is a connection that has a slot.
type counted struct {
	net.Conn
	l    *limited
	once sync.Once
}

// Close gives the slot back.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.l.slots })
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
