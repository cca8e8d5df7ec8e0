package h2

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wide opens the client's windows.
func wide(c *rawConn) {
	c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
	c.must(c.fr.WriteWindowUpdate(0, 1<<30))
}

func TestNoDataWithoutWindow(t *testing.T) {
	f := start(t, manyPings)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.call(1, "hello")
	poll(t, "the answer begins", func() bool { c.ping(); return c.seen[1] != nil })
	if c.ping(); len(c.seen[1].data) > 0 || c.seen[1].ended {
		t.Fatalf("stream 1: %+v", c.seen[1])
	}
	// what the window lets through comes, sooner or later than a ping's answer, and no more
	came := func(n int) {
		t.Helper()
		poll(t, "bytes within the window", func() bool { c.ping(); return len(c.seen[1].data) >= n })
		if c.ping(); len(c.seen[1].data) != n {
			t.Errorf("a window of %d bytes: %d came", n, len(c.seen[1].data))
		}
	}
	c.must(c.fr.WriteWindowUpdate(1, 3))
	came(3)
	c.frame(http2.FrameSettings, 0, 0, setting(4, 4)) // 4 in all, of which 3 are used
	came(7)
	c.frame(http2.FrameSettings, 0, 0, setting(4, 0)) // below nothing
	c.must(c.fr.WriteWindowUpdate(1, 4))
	c.ping()
	if got := len(c.seen[1].data); got != 7 {
		t.Errorf("a window of 0 again: %d came", got)
	}
	c.must(c.fr.WriteWindowUpdate(1, 100))
	if got := c.outcome(1); got != "0 hello" {
		t.Error(got)
	}
}

func manyPings(c *Config) { c.PermitWithoutCalls, c.MinPingInterval = true, 0 }

func TestConnectionWindowIsShared(t *testing.T) {
	f := start(t, manyPings)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	body := strings.Repeat("x", 50000)
	for id := uint32(1); id < 7; id += 2 {
		c.headers(id, false, request()...)
		for b := message(body); len(b) > 0; b = b[min(len(b), 16384):] {
			c.must(c.fr.WriteData(id, len(b) <= 16384, b[:min(len(b), 16384)]))
		}
	}
	poll(t, "the windows are used", func() bool {
		c.ping()
		sum := 0
		for _, a := range c.seen {
			sum += len(a.data)
		}
		return sum == 65535
	})
	c.must(c.fr.WriteWindowUpdate(0, 1<<20))
	for id := uint32(1); id < 7; id += 2 {
		if got := c.outcome(id); got != "0 "+body {
			t.Errorf("stream %d: %d bytes", id, len(got))
		}
	}
}

// TestTurns sees that large answers share the connection, also when there are more of
// them than one write takes up.
func TestTurns(t *testing.T) {
	c := &conn{sendLeft: maxWindow, peerFrame: minMaxFrame, s: &Server{}}
	for i := range 40 {
		st := &Stream{record: record{c: c, id: uint32(2*i + 1), sendLeft: maxWindow, queued: true, begun: true}}
		st.out = outgoing{at: -1, left: 5, trailer: []byte{1}}
		st.out.left = 2 * turn
		st.out.parts = append(st.out.parts, buffer(make([]byte, 2*turn)))
		c.sending = append(c.sending, st)
	}
	all := slices.Clone(c.sending)
	c.streams = newTable(inStreams)
	for range 40*turn/burst + 1 {
		c.pumpLocked()
		c.out = output{}
	}
	for _, st := range all {
		if st.out.left > turn {
			t.Errorf("stream %d had no turn: %d left", st.id, st.out.left)
		}
	}
}

// TestWindowsGrowBack sends more than the windows on one call, padded, and on a
// connection.
func TestWindowsGrowBack(t *testing.T) {
	f := start(t, func(c *Config) { c.StreamWindow, c.ConnectionWindow = 1<<16, 1<<16 })
	for _, path := range []string{"/test.Echo/Echo", "/grpc.health.v1.Health/Watch"} {
		c := hello(t, f)
		left, stream := 1<<16, uint32(1)
		streamLeft := 1 << 16
		send := func(b []byte, pad int) {
			n := len(b) + 1 + pad
			for left < n || streamLeft < n {
				fr, err := c.next()
				if err != nil {
					t.Fatalf("%s: windows %d and %d: %v", path, left, streamLeft, err)
				}
				if w, ok := fr.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
					left += int(w.Increment)
				} else if ok {
					streamLeft += int(w.Increment)
				}
			}
			left, streamLeft = left-n, streamLeft-n
			c.must(c.fr.WriteDataPadded(stream, false, b, make([]byte, pad)))
		}
		c.headers(stream, false, request(":path", path)...)
		if path == "/test.Echo/Echo" {
			send(message(strings.Repeat("x", 300000))[:5], 10)
			for range 300 {
				send(bytes.Repeat([]byte("x"), 1000), 100)
			}
		} else {
			for range 1500 { // what a streaming call has not read is padding alone
				send(nil, 250)
			}
		}
		c.must(c.fr.WriteRSTStream(stream, http2.ErrCodeCancel))
		if got := c.ping(); got != "alive" {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestWindowIsKept(t *testing.T) {
	f := start(t, func(c *Config) { c.StreamWindow, c.ConnectionWindow = 1<<16, 1<<17 })
	c := hello(t, f)
	c.headers(1, false, request("do", "wait")...)
	c.must(c.fr.WriteData(1, false, message(strings.Repeat("x", 16000)))) // its one message
	for range 20 {
		if c.fr.WriteData(1, false, make([]byte, 16000)) != nil {
			break
		}
	}
	if got := c.outcome(1); got != "goaway FLOW_CONTROL_ERROR" {
		t.Errorf("bytes behind the message without end: %s", got)
	}
}

// TestLargeTrailers sees that a status larger than the peer's frames goes on in
// CONTINUATION frames.
func TestLargeTrailers(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	name := strings.Repeat("n", 40000)
	c.headers(1, true, request("refuse", name)...)
	var block []byte
	for {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if n := fr.Header().Length; n > 16384 {
			t.Fatalf("%v of %d bytes", fr.Header().Type, n)
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			block = append(block, fr.HeaderBlockFragment()...)
		case *http2.ContinuationFrame:
			if block = append(block, fr.HeaderBlockFragment()...); !fr.HeadersEnded() {
				continue
			}
			fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
			if err != nil {
				t.Fatal(err)
			}
			if got := fields[len(fields)-1]; got.Value != "no: "+name {
				t.Errorf("message of %d bytes", len(got.Value))
			}
			return
		}
	}
}

// TestSlowReader sees that a peer which takes its answer by the byte, or not at all, is
// cut off, and that its memory comes back.
func TestSlowReader(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = 200 * time.Millisecond })
	t.Run("by the byte", func(t *testing.T) {
		c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.call(1, "hello, world")
		stop := make(chan struct{})
		trickled := make(chan struct{})
		go func() {
			defer close(trickled)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for n := 0; n < 200; n++ {
				select {
				case <-tick.C:
					if n%4 == 0 && c.fr.WriteWindowUpdate(1, 1) != nil {
						return
					}
				case <-stop:
					return
				}
			}
		}()
		got := c.outcome(1)
		close(stop)
		<-trickled
		if got != "reset CANCEL" {
			t.Error(got)
		}
		if got := c.ping(); got != "alive" {
			t.Errorf("the connection: %s", got)
		}
	})
	t.Run("not at all", func(t *testing.T) {
		c := hello(t, f)
		wide(c)
		c.headers(1, false, request()...)
		body := message(strings.Repeat("x", 7<<20))
		for len(body) > 0 {
			n := min(len(body), 1<<20)
			if c.fr.WriteData(1, n == len(body), body[:n]) != nil {
				break
			}
			body = body[n:]
		}
		poll(t, "the connection ends", func() bool {
			return len(f.s.conns.All()) <= 1 // the other one's
		})
	})
}
