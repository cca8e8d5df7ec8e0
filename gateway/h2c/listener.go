package h2c

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// Listener makes the connections of l be upgraded where their first request asks for it,
// for a server that knows HTTP/2 by prior knowledge; maxHead is as with Accept. Before a
// connection's first read or write is done, its first request's head was read.
func Listener(l net.Listener, maxHead int) net.Listener { return &listener{l, maxHead} }

type listener struct {
	net.Listener
	maxHead int
}

// Accept is net.Listener's.
func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: nc, maxHead: l.maxHead}, nil
}

// conn is a connection whose start is not known before it is read.
type conn struct {
	net.Conn
	maxHead int

	once   sync.Once
	start  []byte // to be read first; the reader's once known
	err    error  // then, once
	over   bool   // nothing follows
	credit credit // the writer's once known
}

// open reads the connection's start.
func (c *conn) open() {
	opening, err := Accept(c.Conn, nil, c.maxHead)
	c.start, c.err = opening.Bytes, err
	c.over = opening.Outcome == Refused
	c.credit.owed = opening.Body
}

// Read is net.Conn's.
func (c *conn) Read(p []byte) (int, error) {
	c.once.Do(c.open)
	if len(c.start) > 0 {
		n := copy(p, c.start)
		if c.start = c.start[n:]; len(c.start) == 0 {
			c.start = nil // and with it its memory
		}
		return n, nil
	}
	if err := c.err; err != nil {
		c.err = nil // a deadline may be another one later
		return 0, err
	}
	if c.over {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// Write is net.Conn's.
func (c *conn) Write(p []byte) (int, error) {
	c.once.Do(c.open)
	if c.credit.owed > 0 {
		p = c.credit.take(p)
	}
	return c.Conn.Write(p)
}

// CloseWrite closes the direction to the client; errors.ErrUnsupported: the connection
// can't, and stays as it is.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// credit takes the bytes of an upgraded request's body off the first window update for
// the connection that the server sends: it counts them as DATA, so that it will tell the
// client of their space, which the client never used up.
type credit struct {
	owed int
	head [frameHeader + 4]byte
	have int // bytes of head
	skip int // bytes of the frame that are passed over
}

// take looks at what is written; p itself is not changed.
func (c *credit) take(p []byte) []byte {
	for i := 0; i < len(p) && c.owed > 0; {
		if c.skip > 0 {
			n := min(c.skip, len(p)-i)
			c.skip, i = c.skip-n, i+n
			continue
		}
		c.head[c.have] = p[i]
		c.have++
		i++
		kind, length := c.head[3], int(c.head[0])<<16|int(c.head[1])<<8|int(c.head[2])
		update := kind == typeWindow && length == 4 && binary.BigEndian.Uint32(c.head[5:]) == 0
		switch {
		case c.have < frameHeader, c.have < len(c.head) && update:
		case !update:
			c.have, c.skip = 0, length
		default:
			c.have = 0
			n := binary.BigEndian.Uint32(c.head[frameHeader:])
			if n <= uint32(c.owed) || i < 4 { // or it was written in parts
				continue
			}
			changed := append([]byte(nil), p...)
			binary.BigEndian.PutUint32(changed[i-4:], n-uint32(c.owed))
			c.owed = 0
			return changed
		}
	}
	return p
}
