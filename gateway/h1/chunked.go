package h1

import (
	"errors"
	"net"
	"strconv"
)

// Begin sends the status and the fields of an answer whose body comes by Stream, chunk by
// chunk, while the handler's Serve has not returned: then it ends. The watcher cuts off a
// client that takes a chunk too slowly, as with every answer.
// Source: RFC 9112, 7.1.
func (a *Answer) Begin() error {
	c := a.c
	if a.streamed {
		return errors.New("h1: an answer begins twice")
	}
	a.streamed, a.last = true, c.isLast() || c.close || !c.body.done
	c.out = append(c.appendFields(a, a.last), "Transfer-Encoding: chunked\r\n\r\n"...)
	return c.chunk(nil)
}

// Stream sends b as a chunk, unless it is empty. It blocks while the client takes its
// time.
func (a *Answer) Stream(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	a.c.out = append(strconv.AppendInt(a.c.out, int64(len(b)), 16), "\r\n"...)
	return a.c.chunk(b)
}

// chunk writes what is queued, and b as the rest of a chunk.
func (c *conn) chunk(b []byte) error {
	was := c.phase()
	c.enter(writing)
	c.moved.Store(int64(len(b)))
	var err error
	switch {
	case len(b) == 0:
		_, err = c.nc.Write(c.out)
	case len(b) <= coalesce:
		c.out = append(append(c.out, b...), "\r\n"...)
		_, err = c.nc.Write(c.out)
	default:
		bufs := net.Buffers{c.out, b, crlf[:]}
		_, err = bufs.WriteTo(c.nc)
	}
	c.enter(was)
	if c.out = c.out[:0]; cap(c.out) > maxKept {
		c.out = nil
	}
	return err
}

var crlf = [2]byte{'\r', '\n'}

// writeSource writes the head and the body of an answer that has a Source.
func (c *conn) writeSource(a *Answer, last bool) error {
	c.holds.Store(a.Length)
	defer c.holds.Store(0)
	c.out = append(c.appendFields(a, last), "Transfer-Encoding: chunked\r\n\r\n"...)
	for b := a.Source.Next(); len(b) > 0; b = a.Source.Next() {
		if err := a.Stream(b); err != nil {
			return err
		}
	}
	c.out = append(c.out, "0\r\n\r\n"...)
	return c.chunk(nil)
}

// endStream ends a streamed answer.
func (c *conn) endStream() error {
	a := &c.ans
	last := a.last
	a.streamed, a.last = false, false
	c.out = append(c.out, "0\r\n\r\n"...)
	err := c.chunk(nil)
	c.s.handler.Written(a)
	switch {
	case err != nil:
		return err
	case last || c.isLast():
		c.linger(!c.body.done)
		return errDone
	}
	return nil
}
