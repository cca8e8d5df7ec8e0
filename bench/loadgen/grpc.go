package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2/hpack"
)

// The parts of HTTP/2 that a gRPC client needs (RFC 9113).
const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindow       = 8
	frameContinuation = 9

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32

	settingTableSize = 1
	settingPush      = 2
	settingWindow    = 4
	settingFrame     = 5

	bigWindow = 1 << 30
)

// link is one connection with n requests in flight, all driven by one goroutine.
type link struct {
	in       *bufio.Reader
	out      *bufio.Writer
	headers  []byte // the request's header block: no dynamic table, always the same
	message  []byte
	decoder  *hpack.Decoder
	record   *record
	streams  map[uint32]*stream
	blocked  []uint32 // streams that wait for a window, in order
	next     uint32
	window   int64 // of the connection, for sending
	initial  int64 // of a new stream
	frame    int   // the peer's largest frame
	received int   // bytes since the last connection window update
	header   [9]byte
	status   string // grpc-status and message of the block in the decoder
	detail   string
}

// stream is one request.
type stream struct {
	sent   time.Time
	rest   []byte // of the message, not sent yet
	window int64
}

// driveGRPC keeps n calls in flight on one connection until r has enough and all are
// answered.
func driveGRPC(ctx context.Context, address string, message []byte, n int, r *record) error {
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	l := newLink(conn, address, message, r)
	if err := l.hello(); err != nil {
		return err
	}
	for range n {
		if err := l.request(); err != nil {
			return err
		}
	}
	for len(l.streams) > 0 {
		if l.in.Buffered() < len(l.header) {
			if err := l.out.Flush(); err != nil {
				return err
			}
		}
		if err := l.step(); err != nil {
			return err
		}
	}
	return nil
}

func newLink(conn net.Conn, address string, message []byte, r *record) *link {
	l := &link{in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10), message: message, record: r,
		streams: map[uint32]*stream{}, next: 1, window: 65535, initial: 65535, frame: 16384}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/inference.GRPCInferenceService/ModelInfer"},
		{":authority", address}, {"te", "trailers"}, {"content-type", "application/grpc"}} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			panic(err) // a bytes.Buffer takes everything
		}
	}
	l.headers = block.Bytes()
	l.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		switch f.Name {
		case "grpc-status":
			l.status = f.Value
		case "grpc-message":
			l.detail = f.Value
		}
	})
	return l
}

func (l *link) hello() error {
	settings := make([]byte, 0, 24)
	for _, s := range [][2]uint32{{settingTableSize, 0}, {settingPush, 0}, {settingWindow, bigWindow}} {
		settings = binary.BigEndian.AppendUint16(settings, uint16(s[0]))
		settings = binary.BigEndian.AppendUint32(settings, s[1])
	}
	_, err := l.out.WriteString(preface)
	return errors.Join(err, l.write(frameSettings, 0, 0, settings),
		l.write(frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, bigWindow)))
}

// write puts one frame into the buffer.
func (l *link) write(kind, flags byte, id uint32, payload []byte) error {
	n := len(payload)
	h := [9]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}
	binary.BigEndian.PutUint32(h[5:], id)
	_, err := l.out.Write(h[:])
	if err == nil {
		_, err = l.out.Write(payload)
	}
	return err
}

// request begins one call.
func (l *link) request() error {
	id := l.next
	l.next += 2
	s := &stream{sent: time.Now(), rest: l.message, window: l.initial}
	l.streams[id] = s
	if err := l.write(frameHeaders, flagEndHeaders, id, l.headers); err != nil {
		return err
	}
	return l.push(id, s)
}

// push sends what the windows let through; the rest waits in blocked.
func (l *link) push(id uint32, s *stream) error {
	for len(s.rest) > 0 {
		n := min(int64(len(s.rest)), int64(l.frame), l.window, s.window)
		if n <= 0 {
			l.blocked = append(l.blocked, id)
			return nil
		}
		var flags byte
		if n == int64(len(s.rest)) {
			flags = flagEndStream
		}
		if err := l.write(frameData, flags, id, s.rest[:n]); err != nil {
			return err
		}
		s.rest = s.rest[n:]
		s.window -= n
		l.window -= n
	}
	return nil
}

// unblock tries again what waits for a window.
func (l *link) unblock() error {
	waiting := l.blocked
	l.blocked = nil
	for _, id := range waiting {
		if s := l.streams[id]; s != nil {
			if err := l.push(id, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// step takes one frame.
func (l *link) step() error {
	if _, err := io.ReadFull(l.in, l.header[:]); err != nil {
		return err
	}
	n := int(l.header[0])<<16 | int(l.header[1])<<8 | int(l.header[2])
	kind, flags := l.header[3], l.header[4]
	id := binary.BigEndian.Uint32(l.header[5:]) & (1<<31 - 1)
	if kind == frameData {
		return l.data(n, flags, id)
	}
	if n > 1<<20 {
		return fmt.Errorf("a frame of type %d with %d bytes", kind, n)
	}
	payload := make([]byte, n)
	if n <= l.in.Size() {
		var err error
		if payload, err = l.in.Peek(n); err != nil {
			return err
		}
		defer l.in.Discard(n) //nolint:errcheck // the bytes are there
	} else if _, err := io.ReadFull(l.in, payload); err != nil {
		return err
	}
	switch kind {
	case frameHeaders, frameContinuation:
		return l.block(kind, flags, id, payload)
	case frameSettings:
		return l.settings(flags, payload)
	case framePing:
		if flags&flagAck == 0 {
			return l.write(framePing, flagAck, 0, payload)
		}
	case frameWindow:
		if n != 4 {
			return errors.New("a window update of the wrong size")
		}
		add := int64(binary.BigEndian.Uint32(payload) & (1<<31 - 1))
		if id == 0 {
			l.window += add
		} else if s := l.streams[id]; s != nil {
			s.window += add
		}
		return l.unblock()
	case frameReset:
		return l.finish(id, fmt.Sprintf("stream reset with %x", payload))
	case frameGoAway:
		return fmt.Errorf("the server closes the connection: %q", payload)
	}
	return nil
}

// data skips a piece of an answer and gives its bytes back to the window in time.
func (l *link) data(n int, flags byte, id uint32) error {
	if _, err := l.in.Discard(n); err != nil {
		return err
	}
	if l.received += n; l.received > bigWindow/4 {
		if err := l.write(frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(l.received))); err != nil {
			return err
		}
		l.received = 0
	}
	if flags&flagEndStream != 0 {
		return l.finish(id, "an answer without trailers")
	}
	return nil
}

// block decodes a header block; the one that ends a stream carries grpc-status.
func (l *link) block(kind, flags byte, id uint32, payload []byte) error {
	if kind == frameHeaders && flags&flagPadded != 0 && len(payload) > 0 {
		pad := int(payload[0])
		payload = payload[1:max(1, len(payload)-pad)]
	}
	if kind == frameHeaders && flags&flagPriority != 0 && len(payload) >= 5 {
		payload = payload[5:]
	}
	l.status, l.detail = "", ""
	if _, err := l.decoder.Write(payload); err != nil {
		return err
	}
	if flags&flagEndHeaders == 0 {
		return errors.New("a header block in more than one frame")
	}
	if err := l.decoder.Close(); err != nil {
		return err
	}
	if flags&flagEndStream == 0 {
		return nil
	}
	if l.status == "0" {
		return l.finish(id, "")
	}
	return l.finish(id, fmt.Sprintf("grpc-status %q: %s", l.status, l.detail))
}

// settings takes the server's settings and acknowledges them.
func (l *link) settings(flags byte, payload []byte) error {
	if flags&flagAck != 0 {
		return nil
	}
	for ; len(payload) >= 6; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch binary.BigEndian.Uint16(payload) {
		case settingWindow:
			for _, s := range l.streams {
				s.window += int64(value) - l.initial
			}
			l.initial = int64(value)
		case settingFrame:
			l.frame = int(value)
		}
	}
	if err := l.write(frameSettings, flagAck, 0, nil); err != nil {
		return err
	}
	return l.unblock()
}

// finish ends a call and begins the next one.
func (l *link) finish(id uint32, failure string) error {
	s := l.streams[id]
	if s == nil {
		return nil
	}
	delete(l.streams, id)
	if l.record.add(s.sent, time.Now(), failure) {
		return l.request()
	}
	return nil
}
