package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/listen"
)

const (
	firstBuffer = 4 << 10
	// readBuffer is what the buffer grows to when it was filled.
	readBuffer = 32 << 10
	// maxDiscard is how much of a body that its handler did not read is read away to keep
	// the connection.
	maxDiscard = 256 << 10
)

// conn is one connection. serve is its goroutine, which it has while it is driven.
type conn struct {
	s     *Server
	nc    net.Conn // reads and writes; nil: fd does
	outer net.Conn // is closed, and given away
	slot  net.Conn // as it was accepted: closing it is counted
	eye   watcher
	other *Handoff
	id    uint64 // in the watcher; 0: not watched

	buf    []byte // buf[r:w] was read and is not used up
	r, w   int
	used   bool   // a request was read, and less than fewest bytes of the next
	posted bool   // it was a POST, and nothing behind it was looked at
	out    []byte // answers not written yet
	req    Request
	body   Body
	ans    Answer
	last   string // the head that req and parsed are of
	parsed parser

	try   *listen.Trier // writes without waiting; nil: there is no socket
	added bool          // the watcher was told of it
	late  int           // an inline request took long, among the next so many another must not
	slow  int           // so many requests more are served by its goroutine
	small bool          // the last request was one that the watcher might have served
	stage atomic.Uint32 // what the request that is served is at
	close bool          // the client wants no further answer
	async bool          // a request was not answered when its Serve returned: settled says when it is
	bufs  [][]byte      // what is written

	turn  uint64        // phases so far
	state atomic.Uint64 // the turn of the phase, and in the low bits the phase; serve's to change
	moved atomic.Int64  // bytes in it
	holds atomic.Int64  // bytes of memory under an answer that is written piece by piece

	// tick's to change: the state that it saw last, and when it saw it first.
	seen   atomic.Uint64
	seenAt atomic.Int64
	// tick's own.
	paced paced

	mu       sync.Mutex
	news     sync.Cond         // of stage and pending, where waiting
	waiting  bool              // the goroutine waits for news
	pending  bool              // with async, until the answer was written: all but buf is then another's
	failed   error             // why nothing can follow the answer that another has written
	current  *lifetime.Context // of the request that is served
	gone     bool              // the client has left
	closing  bool              // no request after this one
	over     bool              // the watcher has ended the body's reading
	large    bool              // it rests with more memory than it began with
	trimming bool              // the watcher has ended a rest's reading, to have that memory back
	place    place             // who reads
	fd       int               // of the socket, while it is not driven; -1: nc has it
	trying   bool              // an answer is being written, without waiting
	knocked  bool              // something has come meanwhile
	leaves   bool              // the client sends nothing more, as epoll told while it was parked
	due      bool              // who writes it gives the connection a goroutine then
}

func newConn(s *Server, nc net.Conn, other *Handoff) *conn {
	c := &conn{s: s, nc: listen.Pass(listen.Underneath(nc)), outer: nc, slot: nc, eye: s.watcher(), other: other, fd: -1}
	c.req.Remote, c.req.Unix, c.req.Peer = listen.Remote(nc.RemoteAddr())
	c.req.Passing, _ = c.nc.(*listen.Passing) // of a Unix socket alone
	c.body.c, c.ans.c = c, c
	c.news.L = &c.mu
	c.try = listen.NewTrier(c.nc)
	c.enter(idle)
	return c
}

// control gives the descriptor to f.
func (c *conn) control(f func(fd uintptr)) error {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

// serve answers requests until the connection is over, goes to the other server, or rests
// with the watcher.
func (c *conn) serve() (rests bool) {
	if !c.added {
		c.added = true
		c.s.open.Add(1)
		c.eye.add(c)
	}
	defer c.broken()
	usual, err := true, error(nil)
	for err == nil && usual {
		if usual, err = c.one(); err == nil && usual && c.parks() {
			if err = c.settled(); err == nil && c.park() {
				return true
			}
		}
	}
	c.eye.remove(c)
	if err == nil || err == errDone {
		if failed := c.flush(); failed == nil && err == nil {
			c.s.open.Add(-1)
			c.giveAway()
			return false
		}
	}
	_ = c.outer.Close() // what it still had to say is said or lost
	c.s.open.Add(-1)
	c.dropPassed()
	return false
}

// broken keeps a fault of ours to the one connection that it came up on.
func (c *conn) broken() {
	p := recover()
	if p == nil {
		return
	}
	c.s.log.Error("HTTP: a connection is given up", "panic", p, "stack", string(debug.Stack()))
	c.s.open.Add(-1)
	c.eye.remove(c)
	c.cut()
}

// giveAway lets the other server read everything again from the request on.
func (c *conn) giveAway() {
	c.dropPassed()
	if err := c.nc.SetDeadline(time.Time{}); err != nil {
		_ = c.outer.Close() // it is broken
		return
	}
	c.other.give(&replay{Conn: c.outer, read: c.buf[c.r:c.w:c.w]})
}

// errDone ends a connection in order.
var errDone = errors.New("h1: the connection is over")

// one reads and answers one request. usual is false where the connection is for the
// other server; then nothing of the request is used up.
func (c *conn) one() (usual bool, err error) {
	if !c.rest() {
		return true, errDone
	}
	head, err := c.head()
	if err != nil {
		return false, err
	}
	if head == 0 || !c.parse(c.buf[c.r:c.r+head]) {
		why := ambiguous(c.buf[c.r:c.w])
		if why == "" {
			return false, nil
		}
		c.r = c.w
		return true, c.refuse(why)
	}
	h := &c.parsed
	c.small, c.slow = c.simple(head), max(c.slow-1, 0)
	c.r += head
	c.used, c.posted = true, c.req.Method == "POST"
	if h.refuse {
		return true, c.refuse(twoLengths)
	}
	ctx := c.open()
	c.req.Inline, c.req.Burst = false, nil
	if c.s.handler.Serve(ctx, &c.req, &c.ans) && !c.answeredYet() {
		return true, nil
	}
	ctx.End(context.Canceled)
	if c.ans.streamed {
		err = c.endStream()
	} else {
		err = c.answer(c.isLast() || h.close)
	}
	c.ans.Fields, c.ans.Chunks = c.ans.Fields[:0], c.ans.Chunks[:0]
	return true, err
}

// parse reads a head into req and parsed, unless they are of an equal one: clients repeat
// themselves.
func (c *conn) parse(head []byte) bool {
	if c.last == string(head) {
		return true
	}
	c.last, c.parsed = string(head), parser{req: &c.req}
	if !c.parsed.parse(c.last) {
		c.last = ""
		return false
	}
	return true
}

// open begins the request whose head was parsed.
func (c *conn) open() *lifetime.Context {
	h := &c.parsed
	c.body = Body{c: c, left: h.length, chunked: h.chunked, expect: h.expect}
	if h.length == 0 && !h.chunked {
		c.body.done = true
	}
	c.req.Body, c.req.Length = &c.body, h.length
	if h.chunked {
		c.req.Length = -1
	}
	c.close = h.close
	ctx := &lifetime.Context{}
	c.begin(ctx)
	c.ans.Status = 0
	c.stage.Store(starting)
	return ctx
}

// rest begins the wait for a request; false: there is to be none.
func (c *conn) rest() bool {
	if c.async {
		return true
	}
	c.dropPassed()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter(idle)
	c.large = cap(c.buf) > firstBuffer || cap(c.out) > firstBuffer
	if c.closing {
		c.deadline(time.Now().Add(restTime)) // hurry saw it serving
	}
	return !c.closing || c.r < c.w
}

// dropPassed closes a descriptor that came with the last request and that nobody took.
func (c *conn) dropPassed() {
	if p := c.req.Passing; p != nil {
		p.Drop()
	}
}

// isLast says that no request follows.
func (c *conn) isLast() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// refuse answers a request that may be two, to different readers (RFC 9112, 6.3 and
// 11.2), and ends the connection.
func (c *conn) refuse(why string) error {
	c.body = Body{c: c, left: maxDiscard + 1}
	c.ans.Status = 400
	c.ans.Chunks, c.ans.Length = append(c.ans.Chunks, []byte(why)), int64(len(why))
	c.ans.Fields = append(c.ans.Fields, Field{"Content-Type", "application/json"})
	return c.answer(true)
}

// begin puts a request into service.
func (c *conn) begin(ctx *lifetime.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter(serving)
	c.current = ctx
	if c.gone {
		ctx.End(context.Canceled)
	}
	c.rousedLocked()
	if c.closing {
		// hurry may have ended the reading while it was idle
		c.deadline(time.Time{})
	}
}

// left is the watcher's news that the client has gone.
func (c *conn) left() {
	c.mu.Lock()
	c.gone = true
	ctx := c.current
	c.mu.Unlock()
	if ctx != nil {
		ctx.End(context.Canceled)
	}
}

// head waits for a complete head and returns its length; 0: it is for the other server.
func (c *conn) head() (int, error) {
	var lines lineScanner
	if c.r < c.w { // a pipelined request has its turn when the one before is answered
		if err := c.settled(); err != nil {
			return 0, err
		}
	}
	for {
		c.skipLines()
		b := c.buf[c.r:c.w]
		if !c.used {
			end, usual := lines.scan(b)
			if !usual || end > c.s.cfg.MaxHeaderBytes {
				return 0, nil
			}
			if end > 0 {
				return end, nil
			}
		}
		if len(b) >= c.s.cfg.MaxHeaderBytes {
			return 0, nil
		}
		if len(b) > 0 && c.phase() == idle {
			c.mu.Lock()
			c.enter(heading)
			c.rousedLocked()
			c.mu.Unlock()
		}
		err := c.fill()
		if err == io.EOF && len(b) > 0 && !c.used {
			return 0, nil // half a head: the other server says so
		}
		if err != nil {
			return 0, err
		}
	}
}

// fewest is how much of a further request there must be to look at it: as net/http, which
// gets what is unusual, would.
const fewest = 4

// skipLines passes over line ends that old clients send behind the body of a POST.
// Source: RFC 9112, 2.2; net/http looks at four bytes.
func (c *conn) skipLines() {
	if c.w-c.r < fewest {
		return
	}
	c.used = false
	if !c.posted {
		return
	}
	c.posted = false
	for range fewest {
		if b := c.buf[c.r]; b != '\r' && b != '\n' {
			return
		}
		c.r++
	}
}

// lineScanner looks for the empty line behind a head, as it comes.
type lineScanner struct {
	next int // where to look on
	line int // where the line begins
}

// scan is given all that has come so far. end is where the empty line ends, 0 where it
// has not come. A line that ends without CR, and an empty first one, are unusual.
func (l *lineScanner) scan(b []byte) (end int, usual bool) {
	for {
		i := bytes.IndexByte(b[l.next:], '\n')
		if i < 0 {
			l.next = len(b)
			return 0, true
		}
		i += l.next
		if i == 0 || b[i-1] != '\r' || i == 1 {
			return 0, false
		}
		if i-1 == l.line {
			return i + 1, true
		}
		l.next, l.line = i+1, i+1
	}
}

// fill reads more into the buffer, after everything that waits was written.
func (c *conn) fill() error {
	if !c.async {
		if err := c.flush(); err != nil {
			return err
		}
	}
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
		if c.buf == nil {
			c.buf = make([]byte, firstBuffer)
		}
	case c.w == len(c.buf) && c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.w == len(c.buf) {
		grown := make([]byte, max(2*len(c.buf), readBuffer))
		copy(grown, c.buf[:c.w])
		c.buf = grown
	}
	n, err := c.nc.Read(c.buf[c.w:])
	for n == 0 && timedOut(err) && c.trimmed() {
		n, err = c.nc.Read(c.buf)
	}
	c.w += n
	if c.async {
		if n == 0 && err == io.EOF {
			c.left()
		}
		if ended := c.settled(); ended != nil {
			return ended
		}
	}
	if n > 0 {
		return nil
	}
	return err
}

// timedOut says that the watcher has ended a read.
func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
