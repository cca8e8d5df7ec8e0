package h2

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// maxBlocks bounds the frames of one header block.
const maxBlocks = 64

// headersFrame takes a HEADERS frame.
func (c *conn) headersFrame(h head, b []byte) error {
	if h.stream%2 == 0 {
		return &connError{codeProtocol, "HEADERS on a stream that is not the client's"}
	}
	block, err := unpad(h, b)
	if err != nil {
		return err
	}
	if h.has(flagEndHeaders) {
		return c.headersDone(h, block)
	}
	c.block = append(c.block[:0], block...)
	c.blockHead, c.blocks = h, 1
	c.blockHead.length = max(h.length, 1) // marks that a block is open
	return nil
}

func (c *conn) continuation(h head, b []byte) error {
	if c.blockHead.length == 0 {
		return &connError{codeProtocol, "CONTINUATION without a header block"}
	}
	c.blocks++
	if len(c.block)+len(b) > c.s.cfg.MaxHeaderBytes || c.blocks > maxBlocks {
		return &connError{codeEnhanceYourCalm, "header block too large"}
	}
	c.block = append(c.block, b...)
	if !h.has(flagEndHeaders) {
		return nil
	}
	first := c.blockHead
	c.blockHead = head{}
	return c.headersDone(first, c.block)
}

func (c *conn) headersDone(h head, block []byte) error {
	hd, err := c.headers.read(block)
	if err != nil {
		return err
	}
	if st := c.receiving.get(h.stream); st != nil {
		if !h.has(flagEndStream) {
			return &connError{codeProtocol, "trailers that don't end their stream"}
		}
		if hd.pseudos || hd.malformed != "" && hd.malformed != missing {
			return c.malformed(st)
		}
		return c.endStream(st)
	}
	if h.stream <= c.lastID {
		return c.closed(h)
	}
	c.called++
	c.lastID = h.stream
	return c.open(h, hd)
}

// open begins a call.
func (c *conn) open(h head, hd *header) error {
	if hd.malformed != "" {
		c.opened.Store(h.stream)
		return c.turnAway(h, codeProtocol)
	}
	c.mu.Lock()
	c.makeRoomLocked()
	c.opened.Store(h.stream) // whoever says meanwhile that it will be served must see that it is there
	refused := c.streams.n >= int(c.s.cfg.MaxStreams) || c.calls >= 2*int(c.s.cfg.MaxStreams) || h.stream > c.lastOK || c.ended != nil
	var st *Stream
	if !refused {
		st = c.newLocked()
		st.id, st.head, st.sendLeft = h.stream, hd, c.peerInit
		c.streams.put(st)
	}
	c.mu.Unlock()
	if refused {
		return c.turnAway(h, codeRefusedStream)
	}
	st.recvLeft.Store(int64(c.s.cfg.StreamWindow))
	if h.has(flagEndStream) {
		st.remoteEnd.Store(true)
	}
	c.receiving.put(st)
	if err := c.admit(st); err != nil {
		c.refuse(st, err)
	}
	if h.has(flagEndStream) {
		return c.endStream(st)
	}
	if !st.dispatched && !st.discard {
		st.place = len(c.begun)
		c.begun = append(c.begun, st)
	}
	return nil
}

// dispatch lets a call run. Where its message is not complete, it waits for it.
func (c *conn) dispatch(st *Stream) {
	st.dispatched = true
	if st.begins() {
		c.start(st)
		return
	}
	if !st.in.complete {
		st.arrived = make(chan struct{})
	}
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	c.s.crew.run(st)
	c.gather.Woke()
}

// data takes a DATA frame.
func (c *conn) data(h head) error {
	if h.stream == 0 {
		return &connError{codeProtocol, "DATA on stream 0"}
	}
	if c.recvLeft -= int64(h.length); c.recvLeft < 0 {
		return &connError{codeFlowControl, "more DATA than the connection's window"}
	}
	st := c.receiving.get(h.stream)
	if st == nil {
		if h.stream > c.lastID || h.stream%2 == 0 {
			return &connError{codeProtocol, "DATA on an idle stream"}
		}
		if err := c.closed(h); err != nil {
			return err
		}
		if err := c.skip(h.length); err != nil {
			return err
		}
		return c.credit(nil, h.length, 0)
	}
	if st.recvLeft.Add(-int64(h.length)) < 0 {
		return &connError{codeFlowControl, "more DATA than the stream's window"}
	}
	n, pad := h.length, 0
	if h.has(flagPadded) {
		b, err := c.take(min(1, n))
		if err != nil {
			return err
		}
		if len(b) == 0 || int(b[0]) >= n {
			return &connError{codeProtocol, "padding longer than its frame"}
		}
		pad = int(b[0])
		n -= 1 + pad
	}
	st.body += int64(n)
	if n == 0 && !h.has(flagEndStream) {
		if err := c.guard.control(); err != nil {
			return err
		}
	}
	if err := c.payload(st, n); err != nil {
		return err
	}
	if err := c.skip(pad); err != nil {
		return err
	}
	if h.has(flagEndStream) {
		if err := c.credit(nil, h.length, 0); err != nil {
			return err
		}
		return c.endStream(st)
	}
	return c.credit(st, h.length, h.length-n)
}

// payload takes n bytes of a call's messages.
func (c *conn) payload(st *Stream, n int) error {
	for n > 0 {
		in := &st.in
		if st.discard || in.complete {
			return c.skip(n)
		}
		in.heard = c.heard.Load()
		if in.have < len(in.prefix) {
			b, err := c.take(min(n, len(in.prefix)-in.have))
			if err != nil {
				return err
			}
			in.have += copy(in.prefix[in.have:], b)
			n -= len(b)
			if in.have < len(in.prefix) {
				return nil
			}
			if err := c.need(min(n, peek, len(c.buf)/2)); err != nil {
				return err
			}
			if err := c.message(st, n); err != nil {
				c.fail(st, err)
			}
			continue
		}
		chunk := min(int64(n), int64(len(in.data))-in.got)
		if err := c.readInto(in.data[in.got : in.got+chunk]); err != nil {
			return err
		}
		in.got += chunk
		c.ahead -= chunk
		n -= int(chunk)
		switch {
		case in.got == in.length:
			c.complete(st)
		case in.got == int64(len(in.data)):
			if err := c.grow(st); err != nil {
				c.fail(st, err)
			}
		}
	}
	return nil
}

// peek is how much of a large message is looked at to place it.
const peek = 1 << 10

// message begins a message, of which the frame still has n bytes.
func (c *conn) message(st *Stream, n int) error {
	in := &st.in
	length := int64(binary.BigEndian.Uint32(in.prefix[1:]))
	switch in.prefix[0] {
	case 0:
	case 1:
		if e := st.head.encoding; e == "" || e == "identity" {
			return status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
		}
		in.compressed = true
	default:
		return status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", in.prefix[0])
	}
	if length > c.s.cfg.MaxMessage {
		return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", length, c.s.cfg.MaxMessage)
	}
	if in.length = length; length == 0 {
		c.complete(st)
		return nil
	}
	if length > onReader {
		c.mu.Lock()
		c.small = heavy
		c.mu.Unlock()
	}
	size := min(length, trusted)
	if c.ahead+size > maxAhead || size > mistrusted && c.s.deps.Memory.Scarce() {
		size = min(length, mistrusted)
	}
	return in.place(st, size, c.buf[c.r:min(c.w, c.r+n)])
}

// trusted is how much memory a message gets on its announced length alone; a longer one
// gets more as it comes, and is copied then. All that is announced on a connection gets
// no more than maxAhead beyond what has come, and every message the mistrusted size; so
// does each where memory is scarce.
const (
	trusted    = 4 << 20
	maxAhead   = 32 << 20
	mistrusted = 4 << 10
)

// place takes memory for size bytes of the message, which begins with first.
func (in *incoming) place(st *Stream, size int64, first []byte) error {
	var memory *infer.Buffer
	var err error
	if st.call != nil && !in.compressed {
		memory, err = st.memory(size, first)
	} else {
		memory, err = st.c.s.deps.Memory.Body(size)
	}
	if err != nil {
		return err
	}
	in.memory, in.data = memory, memory.Data[int64(len(memory.Data))-size:]
	st.c.ahead += size - in.got
	return nil
}

// memory asks a call for memory, unless it does not wait for its message any more: then it was
// aborted, or is about to be.
func (st *Stream) memory(size int64, first []byte) (*infer.Buffer, error) {
	if st.dispatched {
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.left {
			return nil, errShort // nobody hears it
		}
	}
	return st.call.Memory(size, first)
}

// grow gives a message whose memory is full four times as much.
func (c *conn) grow(st *Stream) error {
	in := &st.in
	size := min(in.length, 4*int64(len(in.data)))
	old, had := c.s.aside(in.memory, in.data, size)
	defer old.Release()
	in.memory, in.data = nil, nil
	if err := in.place(st, size, had[:min(len(had), peek)]); err != nil {
		return err
	}
	copy(in.data, had)
	return nil
}

// aside moves what has come of a message out of the way, if it is to get a piece of memory that is more
// than half of all there is: there is no room for both. memory is given back, or is what is returned.
func (s *Server) aside(memory *infer.Buffer, data []byte, size int64) (*infer.Buffer, []byte) {
	if size <= s.deps.Memory.Most()/2 {
		return memory, data
	}
	other, err := s.deps.Memory.Aside(data)
	if err != nil {
		return memory, data // that there is no room shows when the larger piece is asked for
	}
	memory.Release()
	return other, other.Data
}

// complete ends a message.
func (c *conn) complete(st *Stream) {
	in := &st.in
	st.spoke()
	if st.method.streams() {
		st.inbox.put(st, in)
		c.gather.Woke()
		*in = incoming{}
		return
	}
	in.complete = true
	if !st.dispatched {
		return
	}
	c.gather.Woke()
	if !st.arrive(nil) {
		c.drop(in)
	}
}

// fail ends a call whose message can't be received.
func (c *conn) fail(st *Stream, err error) {
	c.drop(&st.in)
	if !st.dispatched {
		c.refuse(st, err)
		return
	}
	st.discard = true
	if st.method.streams() {
		st.inbox.end(st, err)
		return
	}
	st.arrive(err)
}

// errShort is what a call hears whose stream ended early; grpc-go says the same.
var errShort = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())

// errNone is grpc-go's word on a call that ended without a message.
var errNone = status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")

// endStream is the end of what the client sends.
func (c *conn) endStream(st *Stream) error {
	if st.head.length >= 0 && st.body != st.head.length {
		return c.malformed(st)
	}
	c.receiving.remove(st.id)
	st.remoteEnd.Store(true)
	if st.discard {
		return nil
	}
	switch {
	case st.method.streams():
		if st.in.have > 0 {
			c.fail(st, errShort)
			return nil
		}
		st.inbox.end(st, io.EOF)
		c.gather.Woke()
	case st.in.have == 0:
		c.fail(st, errNone)
	case !st.in.complete:
		c.fail(st, errShort)
	case !st.dispatched:
		c.unbegin(st)
		c.dispatch(st)
	}
	return nil
}

// abandon ends what is left of a call that the client reset, or whose connection ended.
func (c *conn) abandon(st *Stream, err error) {
	c.receiving.remove(st.id)
	st.remoteEnd.Store(true)
	st.End(err)
	switch {
	case st.discard:
	case !st.dispatched:
		st.discard = true
		if st.call != nil {
			st.call.Abort(err)
		}
		c.drop(&st.in)
	case st.method.streams():
		c.drop(&st.in)
		st.inbox.end(st, err)
	case !st.in.complete:
		c.drop(&st.in)
		st.arrive(err)
	}
}

// drop gives back the memory of a message that nobody takes. Others than the reading
// goroutine may drop complete messages alone.
func (c *conn) drop(in *incoming) {
	if rest := int64(len(in.data)) - in.got; rest > 0 {
		c.ahead -= rest
	}
	in.memory.Release()
	in.memory, in.data, in.got = nil, nil, 0
}

// readInto fills dst: from the buffer, and large rests directly.
func (c *conn) readInto(dst []byte) error {
	n := copy(dst, c.buf[c.r:c.w])
	c.r += n
	dst = dst[n:]
	if len(dst) == 0 {
		return nil
	}
	if len(dst) >= len(c.buf)/2 {
		for len(dst) > 0 {
			n, err := c.receive(dst)
			if err == io.EOF {
				return io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			dst = dst[n:]
		}
		return nil
	}
	b, err := c.take(len(dst))
	copy(dst, b)
	return err
}

// credit counts DATA that was taken, and lets the peer send more when half a window is.
// st is nil where its stream needs none. padding are those of the n bytes that are no
// data.
func (c *conn) credit(st *Stream, n, padding int) error {
	c.uncredited += int64(n)
	if c.uncredited >= int64(c.s.cfg.ConnectionWindow)/2 {
		c.recvLeft += c.uncredited
		n := int(c.uncredited)
		c.uncredited = 0
		c.mu.Lock()
		c.out.small = appendWindow(c.out.small, 0, n)
		c.mu.Unlock()
		c.news = true
	}
	switch {
	case st == nil, st.discard, st.in.complete: // what follows a call's one message is not wanted
		return nil
	case st.method.streams():
		n = padding + st.inbox.arrived(st, n-padding) // the rest is the handler's to credit as it reads
	}
	if st.creditBy(n) {
		c.news = true
	}
	return nil
}

// creditBy counts bytes of a stream that were taken. It queues an update for every half
// window, and says so.
func (st *Stream) creditBy(n int) bool {
	if st.uncredited.Add(int64(n)) < int64(st.c.s.cfg.StreamWindow)/2 || st.remoteEnd.Load() {
		return false
	}
	sum := st.uncredited.Swap(0)
	if sum == 0 { // of a streaming call: the reader or the handler was first
		return false
	}
	st.recvLeft.Add(sum)
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.gone || c.ended != nil {
		return false
	}
	c.out.small = appendWindow(c.out.small, st.id, int(sum))
	return true
}
