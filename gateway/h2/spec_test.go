package h2

import (
	"encoding/hex"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-serve/sluice/gateway/h2c"
)

// More of RFC 9113 and RFC 7541, named after their sections: what the public h2spec asks
// of a server and the other tests here do not.

const endBoth = http2.FlagHeadersEndStream | http2.FlagHeadersEndHeaders

func TestSpecFrames(t *testing.T) {
	open := func(c *rawConn) { c.headers(1, false, request()...) }
	runRaw(t, []rawCase{
		{"4.1 the reserved bit of WINDOW_UPDATE", func(c *rawConn) { c.frame(http2.FrameWindowUpdate, 0, 0, u32(1<<31|5)) }, 0, "alive"},
		{"4.2 DATA of 2^14", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, setting(4, 1<<20))
			open(c)
			c.must(c.fr.WriteData(1, true, message(strings.Repeat("x", 16384-5))))
		}, 0, "0 " + strings.Repeat("x", 16384-5)},
		{"4.2 HEADERS over SETTINGS_MAX_FRAME_SIZE", func(c *rawConn) {
			c.frame(http2.FrameHeaders, endBoth, 1, strings.Repeat("x", 1<<20+1))
		}, 0, "goaway FRAME_SIZE_ERROR"},
		{"4.2 SETTINGS over SETTINGS_MAX_FRAME_SIZE", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, strings.Repeat(setting(3, 1), (1<<20)/6+1))
		}, 0, "goaway FRAME_SIZE_ERROR"},
		{"4.3 a block that ends in the middle of a field", func(c *rawConn) {
			c.frame(http2.FrameHeaders, endBoth, 1, "\x00\x05ab")
		}, 0, "goaway COMPRESSION_ERROR"},
		{"4.3 a field cut by its frames", func(c *rawConn) {
			block := string(c.block(request()...))
			c.frame(http2.FrameHeaders, 0, 1, block[:7])
			c.frame(http2.FrameContinuation, 0, 1, "")
			c.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, block[7:])
			c.must(c.fr.WriteData(1, true, message("x")))
		}, 0, "0 x"},
		{"4.3 the block of a refused call counts for the table", func(c *rawConn) {
			c.headers(1, true, ":method", "POST", "x-added", "once") // malformed, and added to the table
			c.call(3, "x", "x-added", "once")
		}, 3, "0 x"},
	})
}

func TestSpecStates(t *testing.T) {
	answered := func(c *rawConn) {
		c.call(1, "x")
		if got := c.outcome(1); got != "0 x" {
			c.t.Errorf("the first call: %s", got)
		}
	}
	runRaw(t, []rawCase{
		{"5.1 half-closed: CONTINUATION", func(c *rawConn) {
			c.call(1, "x", "do", "wait")
			c.frame(http2.FrameContinuation, 4, 1, "\x83")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 closed: CONTINUATION", func(c *rawConn) { answered(c); delete(c.seen, 1); c.frame(http2.FrameContinuation, 4, 1, "\x83") }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 reset: CONTINUATION", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.must(c.fr.WriteRSTStream(1, 8))
			c.frame(http2.FrameContinuation, 4, 1, "\x83")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 reset: RST_STREAM, WINDOW_UPDATE, PRIORITY", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			for range 2 {
				c.must(c.fr.WriteRSTStream(1, 8))
			}
			c.must(c.fr.WriteWindowUpdate(1, 5))
			c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x00\x01")
		}, 0, "alive"},
		{"5.1.1 a stream skipped is closed: DATA", func(c *rawConn) { c.call(5, "x"); c.frame(http2.FrameData, 0, 3, "x") }, 3, "reset STREAM_CLOSED"},
		{"5.1.1 DATA on an even stream", func(c *rawConn) { c.call(5, "x"); c.frame(http2.FrameData, 0, 2, "x") }, 2, "goaway PROTOCOL_ERROR"},
		{"5.1.1 the highest stream", func(c *rawConn) { c.call(1<<31-1, "x") }, 1<<31 - 1, "0 x"},
		{"5.4.2 no reset for a reset", func(c *rawConn) {
			answered(c)
			c.must(c.fr.WriteRSTStream(1, 1))
			if c.ping(); c.seen[1].reset != "" {
				c.t.Errorf("reset with %s", c.seen[1].reset)
			}
		}, 0, "alive"},
	})
}

func TestSpecDefinitions(t *testing.T) {
	open := func(c *rawConn) { c.headers(1, false, request()...) }
	runRaw(t, []rawCase{
		{"6.2 HEADERS that end the stream and go on", func(c *rawConn) {
			block := string(c.block(request("do", "echo")...))
			c.frame(http2.FrameHeaders, http2.FlagHeadersEndStream, 1, block[:5])
			c.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, block[5:])
		}, 0, "13: cardinality violation: received no request message from non-client-streaming RPC"},
		{"6.2 HEADERS too short for their priority", func(c *rawConn) { c.frame(http2.FrameHeaders, 0x20|4|1, 1, "\x00\x00") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.2 padded HEADERS of nothing", func(c *rawConn) { c.frame(http2.FrameHeaders, 0x8|4|1, 1, "") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.3 a priority of every kind", func(c *rawConn) {
			for _, p := range []string{"\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\xff", "\x80\x00\x00\x07\x10", "\x7f\xff\xff\xff\x10"} {
				c.frame(http2.FramePriority, 0, 5, p)
			}
			c.call(3, "x") // below the stream with a priority, which is still idle
		}, 3, "0 x"},
		{"6.3 a PRIORITY of six bytes", func(c *rawConn) { open(c); c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x03\x10\x00") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.4 RST_STREAM of five bytes", func(c *rawConn) { open(c); c.frame(http2.FrameRSTStream, 0, 1, "12345") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.4 RST_STREAM of a stream of ours", func(c *rawConn) { open(c); c.must(c.fr.WriteRSTStream(2, 8)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.5 SETTINGS of nothing", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, "") }, 0, "alive"},
		{"6.5.2 the largest values", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, setting(1, 1<<32-1)+setting(2, 1)+setting(3, 1<<32-1)+setting(4, 1<<31-1)+setting(5, 1<<24-1)+setting(6, 1<<32-1))
			c.call(1, "x")
		}, 0, "0 x"},
		{"6.5.2 the smallest values", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, setting(1, 0)+setting(2, 0)+setting(3, 0)+setting(4, 0)+setting(5, 16384)+setting(6, 0))
			c.call(1, "x")
			c.must(c.fr.WriteWindowUpdate(1, 100))
		}, 0, "0 x"},
		{"6.7 unknown flags of an answer", func(c *rawConn) { c.frame(http2.FramePing, 0xff, 0, "12345678") }, 0, "alive"},
		{"6.8 GOAWAY of an unknown code", func(c *rawConn) { c.must(c.fr.WriteGoAway(1<<31-1, 0xff, nil)); c.call(1, "x") }, 0, "0 x"},
		{"6.8 GOAWAY of seven bytes", func(c *rawConn) { c.frame(http2.FrameGoAway, 0, 0, "1234567") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.9 WINDOW_UPDATE of five bytes", func(c *rawConn) { open(c); c.frame(http2.FrameWindowUpdate, 0, 1, "12345") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.9.1 the largest window", func(c *rawConn) {
			c.must(c.fr.WriteWindowUpdate(0, 1<<31-1-65535))
			open(c)
			c.must(c.fr.WriteWindowUpdate(1, 1<<31-1-65535))
			c.must(c.fr.WriteData(1, true, message("x")))
		}, 0, "0 x"},
		{"6.9.2 a window that many settings make too large", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.must(c.fr.WriteWindowUpdate(1, 1<<31-1-65535))
			c.frame(http2.FrameSettings, 0, 0, setting(4, 65536))
		}, 0, "goaway FLOW_CONTROL_ERROR"},
		{"6.10 CONTINUATION on stream 0", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.frame(http2.FrameContinuation, 4, 0, "\x86")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"6.10 CONTINUATION behind DATA", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.must(c.fr.WriteData(1, false, message("x")))
			c.frame(http2.FrameContinuation, 4, 1, "\x83")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"6.10 a second END_HEADERS", func(c *rawConn) {
			block := string(c.block(request("do", "wait")...))
			c.frame(http2.FrameHeaders, 0, 1, block[:5])
			c.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, block[5:])
			c.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, "\x83")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"6.10 a block that ends its stream within a block", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.must(c.fr.WriteRSTStream(1, 8))
		}, 0, "goaway PROTOCOL_ERROR"},
		{"7 RST_STREAM of an unknown code", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.must(c.fr.WriteRSTStream(1, 0xff))
		}, 0, "alive"},
	})
}

func TestSpecMessages(t *testing.T) {
	with := func(fields ...string) func(c *rawConn) {
		return func(c *rawConn) { c.headers(1, false, fields...); c.must(c.fr.WriteData(1, true, message("x"))) }
	}
	malformed := "reset PROTOCOL_ERROR"
	runRaw(t, []rawCase{
		{"8.1 trailers over two frames", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, false, message("x")))
			block := string(c.block("a", "b", "c", "d"))
			c.frame(http2.FrameHeaders, http2.FlagHeadersEndStream, 1, block[:2])
			c.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 1, block[2:])
		}, 0, "0 x"},
		{"8.1 data behind trailers", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.must(c.fr.WriteData(1, false, message("x")))
			c.headers(1, true, "a", "b")
			c.must(c.fr.WriteData(1, false, message("y")))
		}, 0, "reset STREAM_CLOSED"},
		{"8.1.1 a content-length of several DATA", func(c *rawConn) {
			c.headers(1, false, request("content-length", "7", "do", "wait")...)
			c.must(c.fr.WriteData(1, false, message("x")))
			c.must(c.fr.WriteData(1, true, []byte("yz")))
		}, 0, malformed},
		{"8.1.1 a content-length that trailers end", func(c *rawConn) {
			c.headers(1, false, request("content-length", "7", "do", "wait")...)
			c.must(c.fr.WriteData(1, false, message("x")))
			c.headers(1, true, "a", "b")
		}, 0, malformed},
		{"8.1.1 a content-length with a sign", with(request("content-length", "+6")...), 0, malformed},
		{"8.1.1 one content-length twice", with(request("content-length", "6", "content-length", "6")...), 0, "0 x"},
		{"8.1.1 padding is no content", func(c *rawConn) {
			c.headers(1, false, request("content-length", "6")...)
			c.must(c.fr.WriteDataPadded(1, true, message("x"), make([]byte, 9)))
		}, 0, "0 x"},
		{"8.2.1 a name with 0x7f", with(request("na\x7fme", "x")...), 0, malformed},
		{"8.2.1 a name with 0x80", with(request("na\x80me", "x")...), 0, malformed},
		{"8.2.1 a name with 0x00", with(request("na\x00me", "x")...), 0, malformed},
		{"8.2.1 a value with CR", with(request("name", "a\rb")...), 0, malformed},
		{"8.2.1 an upper-case name in trailers", func(c *rawConn) {
			c.headers(1, false, request("do", "wait")...)
			c.headers(1, true, "Name", "b")
		}, 0, malformed},
		{"8.2.2 proxy-connection", with(request("proxy-connection", "x")...), 0, malformed},
		{"8.2.2 keep-alive", with(request("keep-alive", "x")...), 0, malformed},
		{"8.2.2 upgrade", with(request("upgrade", "h2c")...), 0, malformed},
		{"8.2.2 te of two", with(request("-te", "", "te", "trailers, gzip")...), 0, malformed},
		{"8.2.3 cookies in pieces", with(request("cookie", "a=b", "cookie", "c=d")...), 0, "0 x"},
		{"8.3 :protocol without its setting", with(request(":protocol", "websocket")...), 0, malformed},
		{"8.3 an upper-case pseudo-header", with(request(":Path", "/")...), 0, malformed},
		{"8.3.1 two methods", with(append([]string{":method", "POST"}, request()...)...), 0, malformed},
		{"8.3.1 two schemes", with(append([]string{":scheme", "http"}, request()...)...), 0, malformed},
		{"8.3.1 an empty :method", with(request(":method", "")...), 0, malformed},
		{"8.3.1 an empty :scheme", with(request(":scheme", "")...), 0, malformed},
		{"8.3.1 no pseudo-header", with("content-type", "application/grpc"), 0, malformed},
		{"8.3.1 another scheme", with(request(":scheme", "https")...), 0, "0 x"},
		{"8.5 CONNECT", with(":method", "CONNECT", ":authority", "h:1"), 0, malformed},
		{"gRPC: two content types", with(append(request(), "content-type", "text/plain")...), 0, "0 x"},
		{"gRPC: two content types, the other way", with(append([]string{":method", "POST", ":scheme", "http", ":path", "/test.Echo/Echo", ":authority",
			"h", "content-type", "text/plain"}, "content-type", "application/grpc")...), 0, "0 x"},
		{"gRPC: HEAD", func(c *rawConn) { c.headers(1, true, request(":method", "HEAD")...) }, 0,
			"405 13: Received a HEADERS frame with :method \"HEAD\" which should be POST"},
		{"gRPC: a value with a space at its end", with(request("name", " a ")...), 0, "0 x"}, // RFC 9113 would have it malformed; gRPC's rule allows it
	})
}

// TestSpecPing sees an answer with the ping's own bytes (RFC 9113, 6.7).
func TestSpecPing(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	c.must(c.fr.WritePing(false, [8]byte{8, 7, 6, 5, 4, 3, 2, 1}))
	for {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := fr.(*http2.PingFrame); ok {
			if !p.IsAck() || p.Data != [8]byte{8, 7, 6, 5, 4, 3, 2, 1} {
				t.Errorf("got %v with %v", p, p.Data)
			}
			return
		}
	}
}

// TestSpecSettings sees our settings first, and each frame of the client's acknowledged
// once and in order, its values in force by then (RFC 9113, 3.4, 6.5 and 6.5.3).
func TestSpecSettings(t *testing.T) {
	f := start(t, nil)
	c := rawDial(t, f.addr)
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}))
	c.call(1, "hello, world")
	c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 20}))
	var seen []string
	acks := 0
	for acks < 2 || c.seen[1] == nil || !c.seen[1].ended {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err, seen)
		}
		seen = append(seen, fr.Header().Type.String())
		if s, ok := fr.(*http2.SettingsFrame); ok {
			if first := len(seen) == 1; first == s.IsAck() {
				t.Errorf("frame %d is %v", len(seen), s)
			}
			if s.IsAck() {
				acks++
			}
		}
	}
	if got := c.outcome(1); got != "0 hello, world" || acks != 2 {
		t.Errorf("got %s, %d acknowledgements, %v", got, acks, seen)
	}
}

// TestSpecGoAway sees the last stream that was taken in the GOAWAY of a fault, and the
// connection closed behind it (RFC 9113, 5.4.1 and 6.8).
func TestSpecGoAway(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	c.call(1, "x")
	c.outcome(1)
	c.call(7, "x", "do", "wait")
	c.frame(http2.FramePing, 0, 0, "short")
	for {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if g, ok := fr.(*http2.GoAwayFrame); ok {
			if g.LastStreamID != 7 || g.ErrCode != http2.ErrCodeFrameSize || len(g.DebugData()) == 0 {
				t.Errorf("last stream %d, %v %q", g.LastStreamID, g.ErrCode, g.DebugData())
			}
			break
		}
	}
	if fr, err := c.next(); err == nil {
		t.Errorf("behind it came %v", fr)
	}
}

// TestHeaderTableSize sees that a client which makes our table smaller is told so at the
// start of the next header block, whatever that is of (RFC 9113, 4.3.1), and once.
func TestHeaderTableSize(t *testing.T) {
	f := start(t, manyPings)
	registerPile(f.s, func(func() ([]byte, error)) error { return nil })
	size := func(n uint32) string { return setting(1, n) }
	for _, test := range []struct {
		name   string
		do     func(c *rawConn)
		blocks []bool // begin with a size update
	}{
		{"as it was", func(c *rawConn) { c.frame(4, 0, 0, size(4096)); c.call(1, "x") }, []bool{false, false}},
		{"larger", func(c *rawConn) { c.frame(4, 0, 0, size(65536)); c.call(1, "x") }, []bool{false, false}},
		{"none", func(c *rawConn) { c.frame(4, 0, 0, size(0)); c.call(1, "x"); c.outcome(1); c.call(3, "x") }, []bool{true, false, false, false}},
		{"smaller, then larger", func(c *rawConn) { c.frame(4, 0, 0, size(0)+size(4096)); c.call(1, "x") }, []bool{true, false}},
		{"smaller twice", func(c *rawConn) {
			c.frame(4, 0, 0, size(100))
			c.call(1, "x")
			c.outcome(1)
			c.frame(4, 0, 0, size(0))
			c.call(3, "x")
		}, []bool{true, false, false, false}},
		{"an answer of trailers alone", func(c *rawConn) { c.frame(4, 0, 0, size(0)); c.call(1, "x", "do", "fail") }, []bool{true}},
		{"between a header and its trailers", func(c *rawConn) {
			c.frame(4, 0, 0, setting(4, 0))
			c.call(1, "x")
			for c.seen[1] == nil {
				if _, err := c.next(); err != nil {
					c.t.Fatal(err)
				}
			}
			c.frame(4, 0, 0, size(1))
			c.ping()
			c.must(c.fr.WriteWindowUpdate(1, 100))
		}, []bool{false, true}},
		{"a stream", func(c *rawConn) {
			c.frame(4, 0, 0, size(0))
			c.headers(1, true, request(":path", "/test.Pile/Pile")...)
		}, []bool{true, false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := hello(t, f)
			var got []bool
			c.saw = func(b []byte) { got = append(got, len(b) > 0 && b[0]&0xe0 == sizeUpdate) }
			test.do(c)
			last := uint32(1)
			if len(test.blocks) == 4 {
				last = 3
			}
			c.outcome(last)
			if len(got) != len(test.blocks) {
				t.Fatalf("%d blocks, want %d", len(got), len(test.blocks))
			}
			for i := range got {
				if got[i] != test.blocks[i] {
					t.Errorf("block %d: an update %v, want %v", i, got[i], test.blocks[i])
				}
			}
		})
	}
}

// TestRFC7541Examples decodes the examples of its appendix C that are requests.
func TestRFC7541Examples(t *testing.T) {
	for name, blocks := range map[string][]struct{ block, want string }{
		"C.2.1 with indexing":    {{"400a637573746f6d2d6b65790d637573746f6d2d686561646572", "custom-key: custom-header"}},
		"C.2.2 without indexing": {{"040c2f73616d706c652f70617468", ":path: /sample/path"}},
		"C.2.3 never indexed":    {{"100870617373776f726406736563726574", "password: secret"}},
		"C.2.4 indexed":          {{"82", ":method: GET"}},
		"C.3 without Huffman": {
			{"828684410f7777772e6578616d706c652e636f6d", ":method: GET, :scheme: http, :path: /, :authority: www.example.com"},
			{"828684be58086e6f2d6361636865", ":method: GET, :scheme: http, :path: /, :authority: www.example.com, cache-control: no-cache"},
			{"828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
				":method: GET, :scheme: https, :path: /index.html, :authority: www.example.com, custom-key: custom-value"}},
		"C.4 with Huffman": {
			{"828684418cf1e3c2e5f23a6ba0ab90f4ff", ":method: GET, :scheme: http, :path: /, :authority: www.example.com"},
			{"828684be5886a8eb10649cbf", ":method: GET, :scheme: http, :path: /, :authority: www.example.com, cache-control: no-cache"},
			{"828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
				":method: GET, :scheme: https, :path: /index.html, :authority: www.example.com, custom-key: custom-value"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newHeaderReader(1 << 12)
			for i, b := range blocks {
				raw, err := hex.DecodeString(b.block)
				if err != nil {
					t.Fatal(err)
				}
				h, err := r.read(raw)
				if err != nil {
					t.Fatal(i, err)
				}
				var got []string
				for _, f := range [][2]string{{":method", h.method}, {":scheme", h.scheme}, {":path", h.path}, {":authority", h.authority}} {
					if f[1] != "" {
						got = append(got, f[0]+": "+f[1])
					}
				}
				for _, f := range h.fields {
					got = append(got, f.Name+": "+f.Value)
				}
				if g := strings.Join(got, ", "); g != b.want {
					t.Errorf("block %d: got %s, want %s", i, g, b.want)
				}
			}
		})
	}
}

// TestRFC7541Representations holds the representations of 5.1 and 6 against a server.
func TestRFC7541Representations(t *testing.T) {
	good := func() string {
		var b []byte
		for fields := request(); len(fields) > 0; fields = fields[2:] {
			b = appendField(b, fields[0], fields[1])
		}
		return string(b)
	}()
	huffman := func(s string) string {
		b := hpack.AppendHuffmanString(nil, s)
		return string(append([]byte{0x80 | byte(len(b))}, b...))
	}
	block := func(b string) func(c *rawConn) {
		return func(c *rawConn) {
			c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, b)
			c.must(c.fr.WriteData(1, true, message("x")))
		}
	}
	second := func(first, second string) func(c *rawConn) {
		return func(c *rawConn) {
			c.frame(http2.FrameHeaders, endBoth, 1, first)
			c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, second)
			c.must(c.fr.WriteData(3, true, message("x")))
		}
	}
	bad := "goaway COMPRESSION_ERROR"
	fails := "9: 100 %25 wrong: %C3%BC%0A"
	entry := "\x40\x02do\x04fail"
	filler := func(n int) string { return "\x40\x01f" + string(h2c.AppendInt(nil, n)) + strings.Repeat("f", n) }
	runRaw(t, []rawCase{
		{"2.3.3 a name's index past both tables", block(good + "\x7f\x00\x01x"), 0, bad},
		{"2.3.3 a name's index past both tables, not indexed", block(good + "\x0f\x2f\x01x"), 0, bad},
		{"4.1 an entry that fills the table", second(good+entry, good+filler(4096-32-1-32-6)+"\xbf"), 3, fails},
		{"4.1 an entry too many", second(good+entry, good+filler(4096-32-1-32-6+1)+"\xbf"), 3, bad},
		{"4.2 a size update at the end of a block", block(good + "\x20"), 0, bad},
		{"4.2 a size update in the middle of a block", block(good[:14] + "\x20" + good[14:]), 0, bad},
		{"4.3 a smaller table drops the oldest", second(good+entry+filler(10), "\x3f\x0c"+good+"\xbf"), 3, bad}, // 43 bytes: filler's entry alone
		{"4.3 a smaller table keeps the newest", second(good+filler(10)+entry, "\x3f\x0c"+good+"\xbe"), 3, fails},
		{"5.1 an integer in more bytes than it needs", block(good + "\x00\x01a\x7f\x80\x00" + strings.Repeat("b", 127)), 0, "0 x"},
		{"5.1 an integer of ten bytes", block(good + "\x00\x7f\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"), 0, bad},
		{"5.1 a string's length that overflows", block(good + "\x00\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), 0, bad},
		{"5.2 an empty value", block(good + "\x00\x01a\x00"), 0, "0 x"},
		{"5.2 an empty Huffman value", block(good + "\x00\x01a\x80"), 0, "0 x"},
		{"5.2 EOS within a Huffman value", block(good + "\x00\x01a\x86\x1f\xff\xff\xff\xff\x1f"), 0, bad},
		{"5.2 Huffman padding that is whole", block(good + "\x00\x01a\x81\xff"), 0, bad},
		{"5.2 a Huffman name", block(good + "\x00" + huffman("do") + huffman("fail")), 0, fails},
		{"6.1 indexed", block("\x83\x86" + "\x04\x0f/test.Echo/Echo\x01\x01h\x0f\x10\x10application/grpc"), 0, "0 x"},
		{"6.2.1 added under a known name", second(good+"\x7a\x02ua", good+"\xbe"), 3, "0 x"},
		{"6.2.1 added with Huffman", second(good+"\x40"+huffman("do")+huffman("fail"), good+"\xbe"), 3, fails},
		{"6.2.2 not added", second(good+"\x00\x02do\x04fail", good+"\xbe"), 3, bad},
		{"6.2.3 never added", second(good+"\x10\x02do\x04fail", good+"\xbe"), 3, bad},
		{"6.2.3 under a name of the table", second(good+entry, good+"\x1f\x2f\x04fail"), 3, fails},
		{"6.3 a size update to the limit", block("\x3f\xe1\x1f" + good), 0, "0 x"},
	})
}
