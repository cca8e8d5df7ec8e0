package h2

import (
	"bytes"
	"errors"
	"io"

	"github.com/sluice-serve/sluice/gateway/h2c"
)

// upgrade takes a plain-text connection over from HTTP/1.1 where its client asks for it.
// Its request is then stream 1, and the buffer begins with a good preface.
func (c *conn) upgrade() error {
	if c.s.cfg.TLS != nil {
		return c.oldClient()
	}
	o, err := h2c.Accept(c.nc, c.buf[c.r:c.w], c.s.cfg.MaxHeaderBytes)
	if err != nil {
		return err
	}
	if c.r, c.w = 0, len(o.Bytes); c.w > len(c.buf) {
		c.buf = make([]byte, c.w)
	}
	copy(c.buf, o.Bytes)
	switch o.Outcome {
	case h2c.Refused:
		err := errors.New("h2: an upgrade that can't be")
		c.finish(err)
		return err
	case h2c.Unchanged:
		return c.oldClient()
	}
	if !bytes.HasPrefix(o.Bytes, []byte(preface)) {
		return errPreface
	}
	c.recvLeft += int64(o.Body) // which the client never took off its window
	return nil
}

var errPreface = errors.New("h2: no HTTP/2 preface")

// oldClient answers a client that speaks HTTP/1 and asks for no upgrade, so that it sees
// what is wrong; others hear nothing.
func (c *conn) oldClient() error {
	if first := c.buf[c.r]; first < 'A' || first > 'Z' { // no method
		return errPreface
	}
	line := 0
	for line = bytes.IndexByte(c.buf[c.r:c.w], '\n'); line < 0 && c.w < maxLine; line = bytes.IndexByte(c.buf[c.r:c.w], '\n') {
		if err := c.more(); err != nil {
			return err
		}
	}
	if line < 0 || !bytes.Contains(c.buf[c.r:c.r+line], []byte(" HTTP/1.")) {
		return errPreface
	}
	if _, err := io.WriteString(c.nc, oldAnswer); err != nil {
		return err
	}
	c.finish(errPreface)
	return errPreface
}

const (
	maxLine   = 8 << 10
	oldText   = "this port speaks gRPC over HTTP/2, by prior knowledge, by an upgrade, or by ALPN over TLS\n"
	oldAnswer = "HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 90\r\n\r\n" + oldText
)
