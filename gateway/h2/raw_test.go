package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

// rawConn is a client that sends frames as they are told.
type rawConn struct {
	t    testing.TB
	nc   net.Conn
	fr   *http2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
	dec  *hpack.Decoder
	seen map[uint32]*rawAnswer

	saw func(b []byte) // sees each header block; nil: nobody does
}

// rawAnswer is what came on one stream.
type rawAnswer struct {
	fields map[string]string
	data   []byte
	ended  bool
	reset  string
}

// rawDial opens a connection; the preface and SETTINGS are the caller's to send.
func rawDial(t testing.TB, addr string) *rawConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return newRaw(t, nc)
}

func newRaw(t testing.TB, nc net.Conn) *rawConn {
	c := &rawConn{t: t, nc: nc, seen: map[uint32]*rawAnswer{}}
	c.enc = hpack.NewEncoder(&c.buf)
	c.dec = hpack.NewDecoder(4096, nil)
	c.fr = http2.NewFramer(nc, nc)
	c.fr.AllowIllegalWrites = true
	c.fr.SetMaxReadFrameSize(1 << 24)
	return c
}

// hello is a connection whose handshake is over.
func hello(t testing.TB, f *fixture, settings ...http2.Setting) *rawConn {
	t.Helper()
	c := rawDial(t, f.addr)
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings(settings...))
	c.must(c.fr.WriteSettingsAck())
	return c
}

func (c *rawConn) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawConn) write(s string) {
	c.t.Helper()
	_, err := io.WriteString(c.nc, s)
	c.must(err)
}

// frame writes a frame as it is.
func (c *rawConn) frame(kind http2.FrameType, flags http2.Flags, stream uint32, payload string) {
	c.t.Helper()
	c.must(c.fr.WriteRawFrame(kind, flags, stream, []byte(payload)))
}

// request are the fields of a good call, with others added or, by "-name", left out.
func request(extra ...string) []string {
	all := []string{":method", "POST", ":scheme", "http", ":path", "/test.Echo/Echo", ":authority", "host", "content-type", "application/grpc",
		"te", "trailers"}
	for i := 0; i < len(extra); i += 2 {
		name, gone := strings.CutPrefix(extra[i], "-")
		if gone {
			name = extra[i][1:]
		}
		replaced := false
		for j := 0; j < len(all); j += 2 {
			if all[j] == name && (gone || strings.HasPrefix(name, ":") || name == "content-type") {
				if replaced = true; gone {
					all = append(all[:j:j], all[j+2:]...)
				} else {
					all[j+1] = extra[i+1]
				}
				break
			}
		}
		if !replaced && !gone {
			all = append(all, name, extra[i+1])
		}
	}
	return all
}

func (c *rawConn) block(fields ...string) []byte {
	c.buf.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		c.must(c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return bytes.Clone(c.buf.Bytes())
}

// headers opens a stream.
func (c *rawConn) headers(stream uint32, end bool, fields ...string) {
	c.t.Helper()
	c.must(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block(fields...), EndHeaders: true, EndStream: end}))
}

func message(body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// call is a whole call.
func (c *rawConn) call(stream uint32, body string, extra ...string) {
	c.t.Helper()
	c.headers(stream, false, request(extra...)...)
	c.must(c.fr.WriteData(stream, true, message(body)))
}

var errHang = errors.New("the server says nothing")

// next reads a frame. At the end of the connection it is nil.
func (c *rawConn) next() (http2.Frame, error) {
	if err := c.nc.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	f, err := c.fr.ReadFrame()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errHang
	}
	if err != nil {
		return nil, err
	}
	if c.take(f); f.Header().Type == http2.FrameGoAway {
		return f, nil
	}
	return f, nil
}

func (c *rawConn) take(f http2.Frame) {
	id := f.Header().StreamID
	if id == 0 {
		return
	}
	a := c.seen[id]
	if a == nil {
		a = &rawAnswer{fields: map[string]string{}}
		c.seen[id] = a
	}
	decode := func(b []byte) {
		fields, err := c.dec.DecodeFull(b)
		if err != nil {
			c.t.Errorf("stream %d: header block: %v", id, err)
		}
		for _, f := range fields {
			a.fields[f.Name] = f.Value
		}
	}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		if c.saw != nil {
			c.saw(f.HeaderBlockFragment())
		}
		if f.HeadersEnded() {
			decode(f.HeaderBlockFragment())
		}
		a.ended = a.ended || f.StreamEnded()
	case *http2.DataFrame:
		a.data = append(a.data, f.Data()...)
		a.ended = a.ended || f.StreamEnded()
	case *http2.RSTStreamFrame:
		a.reset = f.ErrCode.String()
	}
}

// outcome reads until stream is answered or the connection ends, and says which in few
// words: "0 body", "5: message", "reset CODE", "goaway CODE", "closed".
func (c *rawConn) outcome(stream uint32) string {
	c.t.Helper()
	for {
		if a := c.seen[stream]; a != nil && a.reset != "" && a.reset != "NO_ERROR" {
			return "reset " + a.reset
		} else if a != nil && a.ended {
			return a.String()
		}
		f, err := c.next()
		switch {
		case err == errHang:
			return "nothing"
		case err != nil:
			return "closed"
		}
		if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
			for err == nil {
				_, err = c.next()
			}
			if err != io.EOF {
				return fmt.Sprintf("goaway %v, then %v", g.ErrCode, err)
			}
			return "goaway " + g.ErrCode.String()
		}
	}
}

func (a *rawAnswer) String() string {
	s := a.fields["grpc-status"]
	if m := a.fields["grpc-message"]; m != "" {
		s += ": " + m
	}
	if h := a.fields[":status"]; h != "200" {
		s = h + " " + s
	}
	if len(a.data) > 5 {
		s += " " + string(a.data[5:])
	}
	return s
}

// ping says that the connection lives.
func (c *rawConn) ping() string {
	c.t.Helper()
	c.must(c.fr.WritePing(false, [8]byte{1, 2, 3}))
	for {
		f, err := c.next()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if f.IsAck() && f.Data == [8]byte{1, 2, 3} {
				return "alive"
			}
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		}
	}
}

// rawCase is one behaviour of the protocol: what a client does, on stream 1 or above,
// and what comes of stream at, 1 if 0.
type rawCase struct {
	name string
	do   func(c *rawConn)
	at   uint32
	want string // outcome, or "alive"
}

func runRaw(t *testing.T, cases []rawCase, settings ...http2.Setting) {
	f := start(t, nil)
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			c := hello(t, f, settings...)
			test.do(c)
			var got string
			if test.want == "alive" {
				got = c.ping()
			} else {
				got = c.outcome(max(test.at, 1))
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	// whatever the others did
	c := hello(t, f)
	c.call(1, "still")
	if got := c.outcome(1); got != "0 still" {
		t.Errorf("another connection: %s", got)
	}
}

func setting(id uint16, value uint32) string {
	return string(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, id), value))
}

func u32(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }

func itoa(n int) string { return strconv.Itoa(n) }

func buffer(b []byte) mem.Buffer { return mem.SliceBuffer(b) }
