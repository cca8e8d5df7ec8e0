package h2

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/infer"
)

// conn is one connection. serve is its goroutine.
type conn struct {
	s      *Server
	nc     net.Conn // reads and writes; nil while it is parked
	outer  net.Conn // is closed
	slot   net.Conn // as it was accepted
	local  net.Addr
	try    *listen.Trier // writes without waiting; nil: TLS, or no socket. Whoever has flushing has it
	taker  *listen.Taker // reads for the reading goroutine; nil as try
	burst  loop.Burst    // what was read and is not executed yet
	at     *loop.Loop    // reads it while it is parked; nil: nobody can
	remote net.Addr
	caller caller
	auth   credentials.AuthInfo // of TLS; nil: plain text

	// The reading goroutine's alone.
	greeted    bool  // the handshake is over
	opens      bool  // the first frame came
	fault      error // what ended its reading while it was parked
	gather     *loop.Burst
	buf        []byte // what was read: buf[r:w] is not used up
	r, w       int
	headers    *headerReader
	block      []byte // a header block that is continued
	blockHead  head   // of its HEADERS frame
	blocks     int    // frames of it
	lastID     uint32 // highest stream that the peer opened
	recvLeft   int64  // bytes that the peer may send on the connection
	uncredited int64
	receiving  table     // streams whose message or end has not arrived
	begun      []*Stream // in this burst, not dispatched yet
	late       late      // calls that we ended before their client had
	guard      guard
	ahead      int64  // memory that messages have and bytes of them that are still to come
	frames     uint   // that were read
	slowAt     uint   // the last of them that held up a loop
	inFrame    bool   // reading a frame's payload
	kicked     bool   // watch woke the reader
	unread     bool   // nothing has come since it was parked
	bound      bool   // it can't be parked
	swept      int64  // when expire ran last
	called     uint32 // streams that the peer opened
	news       bool   // something was queued that nobody is about to write

	quiet  atomic.Int64  // calls on goroutines that wait for their first message
	heard  atomic.Int64  // when the peer was last heard, on the clock of infer.Now
	opened atomic.Uint32 // lastID, for others

	mu        sync.Mutex
	streams   table
	calls     int // handlers that run, also of streams that are gone
	out       output
	spare     output    // of the last write, for its memory
	free      []*Stream // that may be other calls
	over      bool      // the reading goroutine has ended: calls is in Server.started
	writing   int64     // since when a write lasts, on the clock of infer.Now; 0: none does
	stale     []uint32  // answered before their client had ended: still in receiving
	sending   []*Stream // with data that a window or their turn holds back
	moved     int64     // bytes of such data that were let through
	press     *press    // nil: memory is not scarce, or nothing waits
	sendLeft  int64     // bytes that we may send on the connection
	peerInit  int64     // window of a new stream
	peerFrame int       // largest frame that the peer takes
	shrunk    bool      // the peer made our header table smaller
	shrink    bool      // and the next header block must say so
	flushing  bool
	one       [1][]byte // what is written; whoever has flushing has it
	draining  bool      // GOAWAY was sent: lastOK is the last stream that is served
	lastOK    uint32    // maxStreamID until the second GOAWAY
	ended     error     // why the connection is over
	ready     bool      // the handshake is over: frames may be written
	lingers   bool      // ended in good order: the reading goroutine closes
	waiting   int       // so many wait on room
	fd        int       // of the socket, while it is parked; -1: nc has it
	id        uint64    // with the loop
	turning   bool      // the loop is at it
	kicks     bool      // watch wakes the reading goroutine
	bare      bool      // a write to fd is under way
	due       bool      // it gets a goroutine when neither is
	small     int       // calls in a row whose messages were small; under 0: after a large one
	room      sync.Cond
	granted   int   // window updates that the peer may send without need
	strikesOK bool  // something was sent since the peer's last ping
	pinged    bool  // our keepalive waits for its answer
	pingedAt  int64 // since then, on the clock of infer.Now
	pings     int   // keepalives since something else was sent
	alive     *time.Timer
	age       *time.Timer
	flushers  sync.WaitGroup
}

const readBuffer = 32 << 10

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{s: s, nc: listen.Underneath(nc), outer: nc, slot: nc, local: nc.LocalAddr(), remote: nc.RemoteAddr(), at: s.loop(), fd: -1, headers: newHeaderReader(s.cfg.MaxHeaderBytes),
		recvLeft: int64(s.cfg.ConnectionWindow), receiving: newTable(inReceiving), streams: newTable(inStreams), sendLeft: initialWindow, peerInit: initialWindow,
		peerFrame: minMaxFrame, lastOK: maxStreamID, guard: newGuard(&s.cfg)}
	c.room.L = &c.mu
	c.heard.Store(infer.Now())
	c.gather = &c.burst
	c.caller.at, c.caller.unix, c.caller.peer = listen.Remote(c.remote)
	if s.cfg.TLS == nil {
		c.try = listen.NewTrier(c.nc)
		c.taker = listen.NewTaker(c.nc, c.burst.Close)
	}
	return c
}

// serve reads until the connection is over, or rests with the loop.
func (c *conn) serve() (rests bool) {
	err := c.begin()
	if err == nil {
		err = c.loop()
		c.burst.Close()
	}
	if err == errRests {
		return true
	}
	var fault *connError
	if errors.As(err, &fault) {
		c.goAway(fault)
		c.s.deps.Log.Debug("gRPC: connection ended", "remote", c.remote, "error", fault.text)
	}
	c.mu.Lock()
	lingers := c.lingers
	c.mu.Unlock()
	if !lingers {
		c.close(err)
	}
	for _, st := range c.receiving.all() {
		c.abandon(st, context.Canceled)
	}
	if lingers {
		c.linger()
	}
	c.leave()
	c.flushers.Wait()
	return false
}

// begin is the handshake, or goes on after a rest.
func (c *conn) begin() error {
	if c.greeted {
		return c.again()
	}
	if err := c.handshake(); err != nil {
		return err
	}
	c.greeted = true
	return nil
}

// handshake is TLS, the client's preface, and our settings.
func (c *conn) handshake() error {
	if err := c.nc.SetDeadline(time.Now().Add(c.s.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	if t := c.s.cfg.TLS; t != nil {
		tc := tls.Server(c.nc, t)
		if err := tc.Handshake(); err != nil {
			return err
		}
		if p := tc.ConnectionState().NegotiatedProtocol; p != "h2" {
			return fmt.Errorf("h2: the client negotiated %q", p)
		}
		c.mu.Lock()
		c.nc = tc
		c.auth = credentials.TLSInfo{State: tc.ConnectionState(),
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
		c.mu.Unlock()
	}
	c.buf = make([]byte, readBuffer)
	if err := c.preface(); err != nil {
		return err
	}
	if err := c.nc.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	b := appendFrame(c.out.small, 5*6, frameSettings, 0, 0)
	b = appendSetting(b, settingStreams, c.s.cfg.MaxStreams)
	b = appendSetting(b, settingWindow, uint32(c.s.cfg.StreamWindow))
	b = appendSetting(b, settingFrame, uint32(c.s.cfg.MaxFrame))
	b = appendSetting(b, settingHeaderList, uint32(c.s.cfg.MaxHeaderBytes))
	b = appendSetting(b, settingTableSize, 4096)
	if n := c.s.cfg.ConnectionWindow - initialWindow; n > 0 {
		b = appendWindow(b, 0, n)
	}
	c.out.small = b
	c.ready, c.news = true, true // they leave before the reader blocks
	c.startTimersLocked()
	return nil
}

// preface reads the client's preface. What can't become one is seen at its first byte, and
// is maybe a request for an upgrade.
func (c *conn) preface() error {
	for have := 1; have <= len(preface); have++ {
		if err := c.need(have); err != nil {
			return err
		}
		if c.buf[have-1] != preface[have-1] {
			if err := c.upgrade(); err != nil {
				return err
			}
			break
		}
	}
	c.r += len(preface)
	return nil
}

// loop reads frames. Calls whose messages are not complete when nothing more has
// arrived are begun all the same: their handlers wait.
func (c *conn) loop() error {
	for {
		c.inFrame = false
		for c.w-c.r < frameHeader {
			c.settle()
			if c.park() {
				return errRests
			}
			if err := c.more(); err != nil {
				return err
			}
		}
		if err := c.next(); err != nil {
			return err
		}
	}
}

// next takes a frame whose header is there.
func (c *conn) next() error {
	if c.frames++; c.frames%sweepEvery == 0 {
		c.sweep()
	}
	c.inFrame = true
	h := parseHead(c.buf[c.r:])
	if !c.opens && (h.kind != frameSettings || h.has(flagAck)) {
		return &connError{codeProtocol, "the first frame is not SETTINGS"}
	}
	c.opens = true
	if h.length > c.s.cfg.MaxFrame {
		return &connError{codeFrameSize, "frame larger than SETTINGS_MAX_FRAME_SIZE"}
	}
	c.r += frameHeader
	if c.blockHead.length > 0 && (h.kind != frameContinuation || h.stream != c.blockHead.stream) {
		return &connError{codeProtocol, "header block interrupted"}
	}
	return c.frame(h)
}

// settle is called before the reader may block: it lets go what waits for more.
func (c *conn) settle() {
	for i, st := range c.begun {
		if st != nil && !st.dispatched && !st.discard {
			switch {
			case st.in.complete:
				c.dispatch(st)
			case c.quiet.Load() < int64(c.s.cfg.MaxQuiet): // else it begins when its end has come
				st.hush()
				c.dispatch(st)
			}
		}
		c.begun[i] = nil
	}
	c.begun = c.begun[:0]
	c.forgetStale()
	if at := c.heard.Load(); c.kicked || at-c.swept > int64(c.s.cfg.WriteTimeout)/2 {
		c.kicked, c.swept = false, at
		c.expire(infer.Now())
	}
}

// sweepEvery is the number of frames after which a busy reader, which never finds its
// buffer empty, forgets what is over.
const sweepEvery = 256

// sweep is settle in a burst that does not end: it dispatches nothing.
func (c *conn) sweep() {
	c.begun = slices.DeleteFunc(c.begun, func(st *Stream) bool { return st == nil || st.dispatched || st.discard })
	for i, st := range c.begun {
		st.place = i
	}
	c.forgetStale()
}

// receive reads from the peer; it is the one way to. What waits to be written leaves
// before it may block. It may read nothing, when watch has woken it.
func (c *conn) receive(b []byte) (int, error) {
	if c.news {
		c.news = false
		c.Flush()
	}
	n, err := c.read(b)
	if n > 0 {
		c.unread = false
		c.heard.Store(infer.Now())
		c.burst.Open()
		return n, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && c.woken() {
		return 0, nil
	}
	return 0, err
}

// read reads once. What was read before and not executed yet is, once nothing more is there.
func (c *conn) read(b []byte) (int, error) {
	if c.taker != nil {
		return c.taker.Read(b)
	}
	c.burst.Close()
	return c.nc.Read(b)
}

// woken says that a read ended because watch wants the reader to look around. In the
// middle of a frame there is nothing to look at, but the peer must not stay there.
func (c *conn) woken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready || c.ended != nil || c.inFrame && infer.Now()-c.heard.Load() > int64(c.s.cfg.WriteTimeout) {
		return false
	}
	c.kicked, c.kicks = true, false
	return c.nc.SetReadDeadline(time.Time{}) == nil
}

// more reads once, behind what is there.
func (c *conn) more() error {
	if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.receive(c.buf[c.w:])
	c.w += n
	if err == io.EOF && c.w > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// need makes buf[r:] hold n bytes, n at most half of the buffer or what it grows to.
func (c *conn) need(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	if n > len(c.buf) {
		grown := make([]byte, n)
		c.w = copy(grown, c.buf[c.r:c.w])
		c.r, c.buf = 0, grown
	}
	for c.w-c.r < n {
		if err := c.more(); err != nil {
			return err
		}
	}
	return nil
}

// take gives the next n bytes, valid until the next read.
func (c *conn) take(n int) ([]byte, error) {
	if err := c.need(n); err != nil {
		return nil, err
	}
	b := c.buf[c.r : c.r+n : c.r+n]
	c.r += n
	return b, nil
}

func (c *conn) frame(h head) error {
	if h.kind == frameData {
		return c.data(h)
	}
	switch {
	case h.kind > frameContinuation:
		if err := c.guard.control(); err != nil {
			return err
		}
		return c.skip(h.length) // unknown types are ignored (RFC 9113, 5.5)
	case h.kind == frameHeaders || h.kind == frameContinuation:
		if h.length > c.s.cfg.MaxHeaderBytes+256 {
			return &connError{codeEnhanceYourCalm, "header frame too large"}
		}
	case h.length > maxControl:
		return &connError{codeFrameSize, "control frame too large"}
	}
	b, err := c.take(h.length)
	if err != nil {
		return err
	}
	switch h.kind {
	case frameHeaders:
		return c.headersFrame(h, b)
	case frameContinuation:
		return c.continuation(h, b)
	case framePush:
		return &connError{codeProtocol, "a client may not push"}
	case frameReset:
		return c.resetFrame(h, b)
	case frameWindow:
		return c.windowFrame(h, b)
	}
	if err := c.guard.control(); err != nil {
		return err
	}
	switch h.kind {
	case framePriority:
		switch {
		case h.stream == 0:
			return &connError{codeProtocol, "PRIORITY on stream 0"}
		case len(b) != 5:
			return &connError{codeFrameSize, "PRIORITY frame of a wrong size"}
		case binary.BigEndian.Uint32(b)&maxStreamID == h.stream:
			return &connError{codeProtocol, "stream depends on itself"}
		}
	case frameSettings:
		return c.settings(h, b)
	case framePing:
		return c.ping(h, b)
	case frameGoAway:
		if h.stream != 0 || len(b) < 8 {
			return &connError{codeProtocol, "malformed GOAWAY"}
		}
	}
	return nil
}

// maxControl bounds SETTINGS, GOAWAY and such.
const maxControl = 16 << 10

// skip passes n bytes over.
func (c *conn) skip(n int) error {
	for n > 0 {
		if c.r == c.w {
			if err := c.need(1); err != nil {
				return err
			}
		}
		step := min(n, c.w-c.r)
		c.r += step
		n -= step
	}
	return nil
}
