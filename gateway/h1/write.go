package h1

import (
	"net"
	"strconv"
	"time"
)

const (
	// maxKept is the most memory for answers that is kept for the next one.
	maxKept = 128 << 10
	// coalesce is the body size up to which an answer is copied behind its head.
	coalesce = 16 << 10
)

// flush writes the answers that wait.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	was := c.state.Load()
	c.enter(writing)
	_, err := c.nc.Write(c.out)
	c.mu.Lock()
	c.state.Store(was)
	if c.closing && phaseOf(was) == idle {
		c.deadline(time.Now().Add(restTime)) // hurry saw it writing
	}
	c.mu.Unlock()
	c.out = c.out[:0]
	if cap(c.out) > maxKept {
		c.out = nil
	}
	return err
}

// answer writes c.ans.
func (c *conn) answer(last bool) error {
	a := &c.ans
	discard := !c.body.done
	if discard && (c.body.failed || c.body.chunked || c.body.expect || c.body.left > maxDiscard) {
		last = true
	}
	err := c.writeAnswer(a, last)
	c.s.handler.Written(a)
	switch {
	case err != nil:
		return err
	case last:
		c.linger(discard)
		return errDone
	case discard:
		return c.body.discard()
	}
	return nil
}

// writeAnswer writes head and body.
func (c *conn) writeAnswer(a *Answer, last bool) error {
	if a.Source != nil {
		return c.writeSource(a, last)
	}
	c.appendHead(a, last)
	if a.Length > coalesce {
		return c.writeLarge(a)
	}
	for _, chunk := range a.Chunks {
		c.out = append(c.out, chunk...)
	}
	return c.flush() // at once: the next request may take its time
}

// writeLarge writes the head and the chunks where they lie.
func (c *conn) writeLarge(a *Answer) error {
	c.enter(writing)
	c.moved.Store(a.Length)
	bufs := make(net.Buffers, 0, 1+len(a.Chunks))
	bufs = append(append(bufs, c.out), a.Chunks...)
	_, err := bufs.WriteTo(c.nc)
	c.out = c.out[:0]
	return err
}

// appendHead adds status line and fields, and that no more follows: the body's length.
func (c *conn) appendHead(a *Answer, last bool) {
	b := c.appendFields(a, last)
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, a.Length, 10)
	c.out = append(b, "\r\n\r\n"...)
}

func (c *conn) appendFields(a *Answer, last bool) []byte {
	b := appendStatus(c.out, a.Status)
	for i := range a.Fields {
		b = append(appendClean(b, a.Fields[i].Name), ": "...)
		b = append(appendClean(b, a.Fields[i].Value), "\r\n"...)
	}
	b = append(b, *c.s.date.Load()...)
	if last {
		b = append(b, "Connection: close\r\n"...)
	}
	return b
}

// appendClean adds a text in which no line may end.
func appendClean(b []byte, s string) []byte {
	at := len(b)
	b = append(b, s...)
	for i := at; i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' || b[i] == 0 {
			b[i] = ' '
		}
	}
	return b
}
