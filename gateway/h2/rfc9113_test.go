package h2

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// Each case is named after the section of RFC 9113 that it holds.

func TestRFC9113Preface(t *testing.T) {
	f := start(t, nil)
	for _, test := range []struct{ name, send, want string }{
		{"3.4 no preface", strings.Repeat("x", 24), "closed"},
		{"3.4 a wrong end", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "closed"},
		{"3.4 no SETTINGS", http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + "12345678", "goaway PROTOCOL_ERROR"},
		{"3.4 an acknowledgement first", http2.ClientPreface + "\x00\x00\x00\x04\x01\x00\x00\x00\x00", "goaway PROTOCOL_ERROR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := rawDial(t, f.addr)
			c.write(test.send)
			if got := c.outcome(1); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestRFC9113Frames(t *testing.T) {
	max := http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16384}
	runRaw(t, []rawCase{
		{"4.1 an unknown type", func(c *rawConn) { c.frame(0x42, 0xff, 0, "hello") }, 0, "alive"},
		{"4.1 an unknown type on a stream", func(c *rawConn) { c.frame(0x42, 0, 7, "hello"); c.call(1, "x") }, 0, "0 x"},
		{"4.1 unknown flags", func(c *rawConn) { c.frame(http2.FramePing, 0xfe, 0, "12345678") }, 0, "alive"},
		{"4.1 the reserved bit", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.frame(http2.FrameData, http2.FlagDataEndStream, 1<<31|1, string(message("x")))
		}, 0, "0 x"},
		{"4.2 DATA over SETTINGS_MAX_FRAME_SIZE", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.frame(http2.FrameData, 0, 1, strings.Repeat("x", 1<<20+1))
		}, 0, "goaway FRAME_SIZE_ERROR"},
		{"4.2 a frame of the largest size", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, setting(4, 1<<21))
			c.must(c.fr.WriteWindowUpdate(0, 1<<21))
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, true, message(strings.Repeat("x", 1<<20-5))))
		}, 0, "0 " + strings.Repeat("x", 1<<20-5)},
		{"4.2 a large PING", func(c *rawConn) { c.frame(http2.FramePing, 0, 0, strings.Repeat("x", 1<<20+1)) }, 0, "goaway FRAME_SIZE_ERROR"},
		{"4.3 a bad header block", func(c *rawConn) { c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, "\x80") }, 0, "goaway COMPRESSION_ERROR"},
		{"4.3 a block interrupted by DATA", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.frame(http2.FrameData, 0, 1, "x")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"4.3 a block interrupted by PRIORITY", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x00\x01")
		}, 0, "goaway PROTOCOL_ERROR"},
		{"4.3 a block interrupted by another stream's", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.headers(3, true, request()...)
		}, 0, "goaway PROTOCOL_ERROR"},
		{"5.5 an unknown type in a block", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.frame(0x42, 0, 1, "")
		}, 0, "goaway PROTOCOL_ERROR"},
	}, max)
}

func TestRFC9113StreamStates(t *testing.T) {
	end := http2.FlagDataEndStream
	reset := func(c *rawConn) {
		c.headers(1, false, request("do", "wait")...)
		c.must(c.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	}
	done := func(c *rawConn) {
		c.call(1, "x")
		if got := c.outcome(1); got != "0 x" {
			c.t.Errorf("the first call: %s", got)
		}
		delete(c.seen, 1)
	}
	half := func(c *rawConn) { c.call(1, "x", "do", "wait") }
	runRaw(t, []rawCase{
		{"5.1 idle: DATA", func(c *rawConn) { c.frame(http2.FrameData, end, 1, "x") }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 idle: RST_STREAM", func(c *rawConn) { c.must(c.fr.WriteRSTStream(1, 8)) }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 idle: WINDOW_UPDATE", func(c *rawConn) { c.must(c.fr.WriteWindowUpdate(1, 1)) }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 idle: WINDOW_UPDATE on a stream of ours", func(c *rawConn) { c.call(3, "x"); c.must(c.fr.WriteWindowUpdate(2, 1)) }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 idle: CONTINUATION", func(c *rawConn) { c.frame(http2.FrameContinuation, 4, 1, "\x83") }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1 idle: PRIORITY", func(c *rawConn) { c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x03\x01") }, 0, "alive"},
		{"5.1 half-closed: DATA", func(c *rawConn) { half(c); c.frame(http2.FrameData, 0, 1, "x") }, 0, "reset STREAM_CLOSED"},
		{"5.1 half-closed: HEADERS", func(c *rawConn) { half(c); c.headers(1, true, "a", "b") }, 0, "reset STREAM_CLOSED"},
		{"5.1 half-closed: WINDOW_UPDATE", func(c *rawConn) { half(c); c.must(c.fr.WriteWindowUpdate(1, 5)) }, 0, "alive"},
		{"5.1 half-closed: PRIORITY", func(c *rawConn) { half(c); c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x00\x01") }, 0, "alive"},
		{"5.1 half-closed: RST_STREAM", func(c *rawConn) { half(c); c.must(c.fr.WriteRSTStream(1, 8)) }, 0, "alive"},
		{"5.1 closed: DATA", func(c *rawConn) { done(c); c.frame(http2.FrameData, 0, 1, "x") }, 0, "reset STREAM_CLOSED"},
		{"5.1 closed: HEADERS", func(c *rawConn) { done(c); c.headers(1, true, request()...) }, 0, "goaway STREAM_CLOSED"},
		{"5.1 closed: RST_STREAM", func(c *rawConn) { done(c); c.must(c.fr.WriteRSTStream(1, 8)) }, 0, "alive"},
		{"5.1 closed: WINDOW_UPDATE", func(c *rawConn) { done(c); c.must(c.fr.WriteWindowUpdate(1, 5)) }, 0, "alive"},
		{"5.1 closed: PRIORITY", func(c *rawConn) { done(c); c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x00\x01") }, 0, "alive"},
		{"5.1 reset: DATA", func(c *rawConn) { reset(c); c.frame(http2.FrameData, 0, 1, "x") }, 0, "reset STREAM_CLOSED"},
		{"5.1 reset: HEADERS", func(c *rawConn) { reset(c); c.headers(1, true, request()...) }, 0, "goaway STREAM_CLOSED"},
		{"5.1 answered early: DATA and trailers that were on their way", func(c *rawConn) {
			c.headers(1, false, request("refuse", "it")...)
			if got := c.outcome(1); got != "7: no: it" {
				c.t.Errorf("refused: %s", got)
			}
			c.must(c.fr.WriteData(1, false, message("x")))
			c.must(c.fr.WriteData(1, false, nil))
			c.headers(1, true, "a", "b")
		}, 0, "alive"},
		{"5.1.1 an even stream", func(c *rawConn) { c.headers(2, true, request()...) }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1.1 a stream below the last", func(c *rawConn) { c.call(5, "x", "do", "wait"); c.headers(3, true, request()...) }, 0, "goaway PROTOCOL_ERROR"},
		{"5.1.1 streams that skip", func(c *rawConn) { c.call(9, "x"); c.call(1001, "y") }, 1001, "0 y"},
		{"5.3.1 a stream depends on itself, by HEADERS", func(c *rawConn) {
			c.frame(http2.FrameHeaders, http2.FlagHeadersPriority|4|1, 1, "\x00\x00\x00\x01\x10"+string(c.block(request()...)))
		}, 0, "goaway PROTOCOL_ERROR"},
		{"5.3.1 a stream depends on itself, by PRIORITY", func(c *rawConn) { c.frame(http2.FramePriority, 0, 3, "\x00\x00\x00\x03\x10") }, 0, "goaway PROTOCOL_ERROR"},
	})
}

func TestRFC9113TooManyStreams(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxStreams = 2 })
	c := hello(t, f)
	c.call(1, "x", "do", "wait")
	c.call(3, "x", "do", "wait")
	c.call(5, "x")
	if got := c.outcome(5); got != "reset REFUSED_STREAM" {
		t.Errorf("5.1.2: the third: %s", got)
	}
	c.must(c.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	c.call(7, "y")
	if got := c.outcome(7); got != "0 y" {
		t.Errorf("after a reset: %s", got)
	}
	poll(t, "one handler runs", func() bool { return f.echo.running.Load() == 1 })
}

func TestRFC9113FrameDefinitions(t *testing.T) {
	open := func(c *rawConn) { c.headers(1, false, request()...) }
	padded := http2.FlagDataPadded
	runRaw(t, []rawCase{
		{"6.1 DATA on stream 0", func(c *rawConn) { c.frame(http2.FrameData, 0, 0, "x") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.1 padded DATA", func(c *rawConn) { open(c); c.must(c.fr.WriteDataPadded(1, true, message("x"), make([]byte, 255))) }, 0, "0 x"},
		{"6.1 DATA of padding alone", func(c *rawConn) {
			open(c)
			c.must(c.fr.WriteDataPadded(1, false, nil, make([]byte, 9)))
			c.must(c.fr.WriteDataPadded(1, true, message("x"), nil))
		}, 0, "0 x"},
		{"6.1 padding as long as its frame", func(c *rawConn) { open(c); c.frame(http2.FrameData, padded, 1, "\x05xxxx") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.1 padded without a length", func(c *rawConn) { open(c); c.frame(http2.FrameData, padded, 1, "") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.1 bytes one by one", func(c *rawConn) {
			open(c)
			for _, b := range message("abc") {
				c.must(c.fr.WriteData(1, false, []byte{b}))
			}
			c.must(c.fr.WriteData(1, true, nil))
		}, 0, "0 abc"},
		{"6.2 HEADERS on stream 0", func(c *rawConn) { c.headers(0, true, request()...) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.2 padded HEADERS with a priority", func(c *rawConn) {
			c.must(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(request()...), EndHeaders: true, PadLength: 200,
				Priority: http2.PriorityParam{StreamDep: 7, Exclusive: true, Weight: 3}}))
			c.must(c.fr.WriteData(1, true, message("x")))
		}, 0, "0 x"},
		{"6.2 padding longer than HEADERS", func(c *rawConn) { c.frame(http2.FrameHeaders, 0x8|4|1, 1, "\xff\x83") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.3 PRIORITY on stream 0", func(c *rawConn) { c.frame(http2.FramePriority, 0, 0, "\x00\x00\x00\x03\x10") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.3 PRIORITY of four bytes", func(c *rawConn) { c.frame(http2.FramePriority, 0, 1, "\x00\x00\x00\x03") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.4 RST_STREAM on stream 0", func(c *rawConn) { c.must(c.fr.WriteRSTStream(0, 8)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.4 RST_STREAM of three bytes", func(c *rawConn) { open(c); c.frame(http2.FrameRSTStream, 0, 1, "\x00\x00\x00") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.5 SETTINGS on a stream", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 1, "") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.5 an acknowledgement with settings", func(c *rawConn) { c.frame(http2.FrameSettings, 1, 0, setting(3, 1)) }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.5 SETTINGS of five bytes", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, "12345") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.5.2 ENABLE_PUSH 2", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, setting(2, 2)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.5.2 INITIAL_WINDOW_SIZE 2^31", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, setting(4, 1<<31)) }, 0, "goaway FLOW_CONTROL_ERROR"},
		{"6.5.2 MAX_FRAME_SIZE 16383", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, setting(5, 16383)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.5.2 MAX_FRAME_SIZE 2^24", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, setting(5, 1<<24)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.5.2 an unknown setting", func(c *rawConn) { c.frame(http2.FrameSettings, 0, 0, setting(0xff, 1)) }, 0, "alive"},
		{"6.5.2 the last of many values counts", func(c *rawConn) {
			c.frame(http2.FrameSettings, 0, 0, strings.Repeat(setting(4, 0), 2000)+setting(4, 100))
			c.call(1, "x")
		}, 0, "0 x"},
		{"6.6 PUSH_PROMISE", func(c *rawConn) { open(c); c.frame(http2.FramePushPromise, 4, 1, "\x00\x00\x00\x02\x83") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.7 PING on a stream", func(c *rawConn) { c.frame(http2.FramePing, 0, 1, "12345678") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.7 PING of six bytes", func(c *rawConn) { c.frame(http2.FramePing, 0, 0, "123456") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.7 an answer that nobody waits for", func(c *rawConn) { c.must(c.fr.WritePing(true, [8]byte{9})) }, 0, "alive"},
		{"6.8 GOAWAY on a stream", func(c *rawConn) { c.frame(http2.FrameGoAway, 0, 1, "12345678") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.8 GOAWAY of the client's", func(c *rawConn) { c.must(c.fr.WriteGoAway(0, 0, []byte("bye"))); c.call(1, "x") }, 0, "0 x"},
		{"6.9 WINDOW_UPDATE of 0", func(c *rawConn) { c.must(c.fr.WriteWindowUpdate(0, 0)) }, 0, "goaway PROTOCOL_ERROR"},
		{"6.9 WINDOW_UPDATE of 0 on a stream", func(c *rawConn) { c.call(1, "x", "do", "wait"); c.must(c.fr.WriteWindowUpdate(1, 0)) }, 0, "reset PROTOCOL_ERROR"},
		{"6.9 WINDOW_UPDATE of three bytes", func(c *rawConn) { c.frame(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x01") }, 0, "goaway FRAME_SIZE_ERROR"},
		{"6.9.1 a connection window over 2^31-1", func(c *rawConn) { c.must(c.fr.WriteWindowUpdate(0, 1<<31-1)) }, 0, "goaway FLOW_CONTROL_ERROR"},
		{"6.9.1 a stream's window over 2^31-1", func(c *rawConn) { c.call(1, "x", "do", "wait"); c.must(c.fr.WriteWindowUpdate(1, 1<<31-1)) }, 0, "reset FLOW_CONTROL_ERROR"},
		{"6.9.2 windows made too large by SETTINGS", func(c *rawConn) {
			c.call(1, "x", "do", "wait")
			c.must(c.fr.WriteWindowUpdate(1, 1<<31-1-65535))
			c.frame(http2.FrameSettings, 0, 0, setting(4, 1<<31-1))
		}, 0, "goaway FLOW_CONTROL_ERROR"},
		{"6.10 CONTINUATION", func(c *rawConn) {
			block := c.block(request()...)
			c.frame(http2.FrameHeaders, 0, 1, "")
			for i := range block {
				var flags http2.Flags
				if i == len(block)-1 {
					flags = http2.FlagContinuationEndHeaders
				}
				if i%4 == 3 || i == len(block)-1 {
					c.frame(http2.FrameContinuation, flags, 1, string(block[i/4*4:i+1]))
				}
			}
			c.must(c.fr.WriteData(1, true, message("x")))
		}, 0, "0 x"},
		{"6.10 CONTINUATION behind a whole block", func(c *rawConn) { open(c); c.frame(http2.FrameContinuation, 4, 1, "\x83") }, 0, "goaway PROTOCOL_ERROR"},
		{"6.10 CONTINUATION of another stream", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 0, 1, "\x83")
			c.frame(http2.FrameContinuation, 4, 3, "\x86")
		}, 0, "goaway PROTOCOL_ERROR"},
	})
}

func TestRFC9113Requests(t *testing.T) {
	with := func(fields ...string) func(c *rawConn) {
		return func(c *rawConn) { c.headers(1, false, fields...); c.must(c.fr.WriteData(1, true, message("x"))) }
	}
	malformed := "reset PROTOCOL_ERROR"
	trailers := func(do string, fields ...string) func(c *rawConn) {
		return func(c *rawConn) {
			c.headers(1, false, request("do", do)...)
			c.must(c.fr.WriteData(1, false, message("x")))
			c.headers(1, true, fields...)
		}
	}
	runRaw(t, []rawCase{
		{"8.1 trailers", trailers("echo", "a", "b"), 0, "0 x"},
		{"8.1 trailers that don't end", func(c *rawConn) { c.headers(1, false, request()...); c.headers(1, false, "a", "b") }, 0, "goaway PROTOCOL_ERROR"},
		{"8.1 pseudo-headers in trailers", trailers("wait", ":path", "/"), 0, malformed},
		{"8.1 a connection header in trailers", trailers("wait", "connection", "close"), 0, malformed},
		{"8.1.1 a content-length that holds", with(request("content-length", "6")...), 0, "0 x"},
		{"8.1.1 a content-length that is more", with(request("content-length", "7")...), 0, malformed},
		{"8.1.1 a content-length that is less", with(request("content-length", "5")...), 0, malformed},
		{"8.1.1 two content-lengths", with(request("content-length", "6", "content-length", "7")...), 0, malformed},
		{"8.1.1 a content-length of words", with(request("content-length", "six")...), 0, malformed},
		{"8.1.1 a content-length without data", func(c *rawConn) { c.headers(1, true, request("content-length", "6")...) }, 0, malformed},
		{"8.2.1 an upper-case name", with(request("Name", "x")...), 0, malformed},
		{"8.2.1 a name with a space", with(request("na me", "x")...), 0, malformed},
		{"8.2.1 a name with a colon", with(request("na:me", "x")...), 0, malformed},
		{"8.2.1 an empty name", with(request("", "x")...), 0, malformed},
		{"8.2.1 a value with NUL", with(request("name", "a\x00b")...), 0, malformed},
		{"8.2.1 a value with LF", with(request("name", "a\nb")...), 0, malformed},
		{"8.2.1 a path with CR", with(request(":path", "/a\r")...), 0, malformed},
		{"8.2.2 connection", with(request("connection", "keep-alive")...), 0, malformed},
		{"8.2.2 transfer-encoding", with(request("transfer-encoding", "chunked")...), 0, malformed},
		{"8.2.2 te gzip", with(request("-te", "", "te", "gzip")...), 0, malformed},
		{"8.3 an unknown pseudo-header", with(request(":test", "x")...), 0, malformed},
		{"8.3 a pseudo-header of responses", with(request(":status", "200")...), 0, malformed},
		{"8.3 a pseudo-header behind others", with(":method", "POST", ":scheme", "http", "content-type", "application/grpc", ":path", "/test.Echo/Echo"), 0, malformed},
		{"8.3.1 no :method", with(request("-:method", "")...), 0, malformed},
		{"8.3.1 no :scheme", with(request("-:scheme", "")...), 0, malformed},
		{"8.3.1 no :path", with(request("-:path", "")...), 0, malformed},
		{"8.3.1 an empty :path", with(request(":path", "")...), 0, malformed},
		{"8.3.1 two :paths", with(append([]string{":path", "/x"}, request()...)...), 0, malformed},
		{"8.3.1 two authorities", with(append([]string{":authority", "x"}, request()...)...), 0, malformed},
		{"gRPC: no authority", with(request("-:authority", "")...), 0, "400 13: no host or :authority header present"},
		{"gRPC: a host", with(request("-:authority", "", "host", "h")...), 0, "0 x"},
		{"gRPC: GET", with(request(":method", "GET")...), 0, "405 13: Received a HEADERS frame with :method \"GET\" which should be POST"},
		{"gRPC: another content type", with(request("content-type", "text/html")...), 0, "415 3: invalid gRPC request content-type \"text/html\""},
		{"gRPC: a subtype", with(request("content-type", "application/grpc+proto")...), 0, "0 x"},
		{"gRPC: grpc-timeout of nothing", with(request("grpc-timeout", "0m")...), 0, "4: context deadline exceeded"},
		{"gRPC: grpc-timeout without a unit", with(request("grpc-timeout", "10")...), 0, "400 13: malformed grpc-timeout: transport: timeout unit is not recognized: \"10\""},
		{"gRPC: metadata that is no base64", with(request("x-bin", "*")...), 0, "400 13: malformed binary metadata \"*\" in header \"x-bin\": illegal base64 data at input byte 0"},
		{"gRPC: no message", func(c *rawConn) { c.headers(1, true, request()...) }, 0,
			"13: cardinality violation: received no request message from non-client-streaming RPC"},
		{"gRPC: half a prefix", func(c *rawConn) { c.headers(1, false, request()...); c.must(c.fr.WriteData(1, true, []byte{0, 0})) }, 0, "13: unexpected EOF"},
		{"gRPC: half a message", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, true, message("abc")[:6]))
		}, 0, "13: unexpected EOF"},
		{"gRPC: a payload format", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, true, []byte{7, 0, 0, 0, 0}))
		}, 0, "13: grpc: received unexpected payload format 7"},
		{"gRPC: compressed in no encoding", func(c *rawConn) {
			c.headers(1, false, request()...)
			c.must(c.fr.WriteData(1, true, []byte{1, 0, 0, 0, 0}))
		}, 0,
			"13: grpc: compressed flag set with identity or empty encoding"},
		{"gRPC: an unknown encoding", with(request("grpc-encoding", "snail")...), 0, "12: grpc: Decompressor is not installed for grpc-encoding \"snail\""},
		{"gRPC: a path without a method", with(request(":path", "x")...), 0, "12: malformed method name: \"x\""},
	})
}
