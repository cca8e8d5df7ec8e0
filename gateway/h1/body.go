package h1

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Body is a request's body. Its errors are io.EOF at the end, io.ErrUnexpectedEOF where
// the connection ended before, os.ErrDeadlineExceeded where it came too slowly,
// ErrChunked, and infer's for more than 65536 chunks.
type Body struct {
	c       *conn
	left    int64 // bytes of the body, or of the chunk
	chunked bool
	expect  bool // the client waits for 100 Continue
	done    bool
	failed  bool
	began   bool // bytes of it were waited for

	inChunk bool // left counts down a chunk; its CRLF follows
	excess  int  // bytes of framing beyond what chunks of a sensible size need
	chunks  int  // so far
}

// ErrChunked is a body whose chunks are malformed, or so small that their framing is
// most of it.
var ErrChunked = errors.New("h1: malformed chunked encoding")

// Read reads into p, large pieces straight from the connection.
func (b *Body) Read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := b.read(p)
	if err != nil && err != io.EOF {
		b.failed = true
	}
	if b.done && b.began {
		b.c.readDone()
	}
	return n, err
}

func (b *Body) read(p []byte) (int, error) {
	if b.chunked && b.left == 0 {
		if err := b.nextChunk(); err != nil || b.done {
			if b.done {
				err = io.EOF
			}
			return 0, err
		}
	}
	n, err := b.some(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if b.left == 0 && !b.chunked {
		b.done = true
	}
	return n, err
}

// some reads at least one byte into p.
func (b *Body) some(p []byte) (int, error) {
	c := b.c
	if c.r == c.w {
		if err := b.wait(); err != nil {
			return 0, err
		}
		if len(p) >= len(c.buf)/2 {
			n, err := c.nc.Read(p)
			c.moved.Add(int64(n))
			if n > 0 {
				return n, nil
			}
			return 0, unexpected(err)
		}
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	return n, nil
}

// wait is called before the body is waited for.
func (b *Body) wait() error {
	c := b.c
	if !b.began {
		b.began = true
		c.enter(reading)
	}
	if b.expect {
		b.expect = false
		c.out = append(c.out, "HTTP/1.1 100 Continue\r\n\r\n"...)
	}
	return c.flush()
}

func (b *Body) fill() error {
	if err := b.wait(); err != nil {
		return err
	}
	before := b.c.w - b.c.r
	err := b.c.fill()
	b.c.moved.Add(int64(b.c.w - b.c.r - before))
	return unexpected(err)
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Limits of chunked framing: of a line, of what small chunks may cost, of trailers, and of
// chunks. The last one and its text are the original's of 2.7x.
const (
	maxChunks  = 1 << 16
	maxLine    = 4 << 10
	maxExcess  = 64 << 10
	freeChunk  = 16
	maxTrailer = 8 << 10
)

// nextChunk reads a chunk's size line, and the end of the one before. Extensions and
// trailers are passed over.
func (b *Body) nextChunk() error {
	if b.inChunk {
		if err := b.crlf(); err != nil {
			return err
		}
		b.inChunk = false
	}
	line, err := b.line()
	if err != nil {
		return err
	}
	size, ok := chunkSize(line)
	if !ok {
		return ErrChunked
	}
	b.excess += len(line) + 4 - freeChunk - int(min(2*size, 1<<20))
	b.excess = max(b.excess, 0)
	if b.excess > maxExcess {
		return ErrChunked
	}
	if size > 0 {
		if b.chunks++; b.chunks > maxChunks {
			return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge,
				"Chunked request body exceeds maximum of %d non-empty chunks. Send fewer or larger HTTP chunks.", maxChunks)
		}
		b.left, b.inChunk = size, true
		return nil
	}
	for total := 0; ; {
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			b.done = true
			return nil
		}
		name, value, ok := strings.Cut(string(line), ":")
		if total += len(line); total > maxTrailer || !ok || !token(name) || !visible(value) {
			return ErrChunked
		}
	}
}

// crlf reads the end of a chunk's data.
func (b *Body) crlf() error {
	c := b.c
	for _, want := range []byte("\r\n") {
		if c.r == c.w {
			if err := b.fill(); err != nil {
				return err
			}
		}
		if c.buf[c.r] != want {
			return ErrChunked
		}
		c.r++
	}
	return nil
}

// line reads up to CRLF, which it takes off. It is valid until the next read.
func (b *Body) line() ([]byte, error) {
	c := b.c
	for scanned := 0; ; {
		for i := c.r + scanned; i < c.w; i++ {
			if c.buf[i] != '\n' {
				continue
			}
			if i == c.r || c.buf[i-1] != '\r' {
				return nil, ErrChunked
			}
			line := c.buf[c.r : i-1]
			c.r = i + 1
			return line, nil
		}
		if scanned = c.w - c.r; scanned > maxLine {
			return nil, ErrChunked
		}
		if err := b.fill(); err != nil {
			return nil, err
		}
	}
}

// chunkSize reads the hexadecimal size before any extension.
func chunkSize(line []byte) (int64, bool) {
	var n int64
	digits := 0
	for i, ch := range line {
		var d byte
		switch {
		case '0' <= ch && ch <= '9':
			d = ch - '0'
		case 'a' <= ch && ch <= 'f':
			d = ch - 'a' + 10
		case 'A' <= ch && ch <= 'F':
			d = ch - 'A' + 10
		case digits > 0 && (ch == ';' || ch == ' ' || ch == '\t'):
			return n, extension(line[i:])
		default:
			return 0, false
		}
		if digits++; digits > 15 {
			return 0, false
		}
		n = n<<4 | int64(d)
	}
	return n, digits > 0
}

// extension says that what follows a size is nothing, or extensions without control
// characters; a second number would be another size to another reader.
func extension(b []byte) bool {
	if b = bytes.TrimLeft(b, " \t"); len(b) > 0 && b[0] != ';' {
		return false
	}
	for _, ch := range b {
		if ch < ' ' && ch != '\t' || ch == 0x7f {
			return false
		}
	}
	return true
}

// discard reads away what the handler left, so that the next request can be read.
func (b *Body) discard() error {
	var sink [4 << 10]byte
	for {
		_, err := b.Read(sink[:])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
