package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// flood sends a frame, or what make gives for the nth time, until the server ends the
// connection, and says how that ended. most bounds the frames.
func flood(c *rawConn, most int, send func(n int) error) string {
	failed := make(chan int, 1)
	go func() {
		for n := range most {
			if send(n) != nil {
				failed <- n
				return
			}
		}
		failed <- most
	}()
	got := "no GOAWAY"
	for {
		f, err := c.next()
		if err != nil {
			if err == errHang {
				got = "nothing"
			}
			_ = c.nc.Close()
			break
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			got = g.ErrCode.String()
		}
	}
	if n := <-failed; n == most {
		got += ", after all of it"
	}
	return got
}

// floodCase is one kind of cheap frame; block is that of a good call.
type floodCase struct {
	name string
	send func(c *rawConn, block string, n int) error
}

func floods() []floodCase {
	return []floodCase{
		{"SETTINGS", func(c *rawConn, block string, n int) error { return c.fr.WriteSettings() }},
		{"SETTINGS of 2730 values", func(c *rawConn, block string, n int) error {
			return c.fr.WriteRawFrame(http2.FrameSettings, 0, 0, []byte(strings.Repeat(setting(4, 70000), 2730)))
		}},
		{"SETTINGS acknowledgements", func(c *rawConn, block string, n int) error { return c.fr.WriteSettingsAck() }},
		{"PING", func(c *rawConn, block string, n int) error { return c.fr.WritePing(false, [8]byte{}) }},
		{"PING answers", func(c *rawConn, block string, n int) error { return c.fr.WritePing(true, [8]byte{}) }},
		{"PRIORITY", func(c *rawConn, block string, n int) error {
			return c.fr.WritePriority(3, http2.PriorityParam{Weight: 1})
		}},
		{"an unknown type", func(c *rawConn, block string, n int) error { return c.fr.WriteRawFrame(0x33, 0, 0, nil) }},
		{"GOAWAY", func(c *rawConn, block string, n int) error { return c.fr.WriteGoAway(0, 0, nil) }},
		{"WINDOW_UPDATE", func(c *rawConn, block string, n int) error { return c.fr.WriteWindowUpdate(0, 1) }},
		{"empty DATA", func(c *rawConn, block string, n int) error {
			if n == 0 {
				return c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block), EndHeaders: true})
			}
			return c.fr.WriteData(1, false, nil)
		}},
		{"DATA of padding alone", func(c *rawConn, block string, n int) error {
			if n == 0 {
				return c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block), EndHeaders: true})
			}
			return c.fr.WriteDataPadded(1, false, nil, []byte{0})
		}},
		{"rapid reset", func(c *rawConn, block string, n int) error {
			id := uint32(2*n + 1)
			if err := c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(block), EndHeaders: true, EndStream: true}); err != nil {
				return err
			}
			return c.fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}},
		{"resets by us", func(c *rawConn, block string, n int) error { // malformed: no pseudo-header
			return c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: []byte("\x00\x01a\x01b"), EndHeaders: true})
		}},
		{"empty CONTINUATION", func(c *rawConn, block string, n int) error {
			if n == 0 {
				return c.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, nil)
			}
			return c.fr.WriteRawFrame(http2.FrameContinuation, 0, 1, nil)
		}},
		{"CONTINUATION without end", func(c *rawConn, block string, n int) error {
			if n == 0 {
				return c.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, []byte(block))
			}
			return c.fr.WriteRawFrame(http2.FrameContinuation, 0, 1, []byte(strings.Repeat("\x00\x01a\x01b", 800)))
		}},
		{"HEADERS of 100 KB", func(c *rawConn, block string, n int) error {
			return c.fr.WriteRawFrame(http2.FrameHeaders, 4, 1, make([]byte, 100<<10))
		}},
	}
}

// TestFloods sees that each kind of cheap frame ends its connection, with a reason that
// arrives, while another connection is served.
func TestFloods(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	if _, err := call(t.Context(), cc, []byte("x")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := call(t.Context(), cc, []byte("meanwhile")); err != nil {
				served <- err
				return
			}
		}
		served <- nil
	}()
	for _, test := range floods() {
		t.Run(test.name, func(t *testing.T) {
			c := hello(t, f)
			block := string(c.block(request()...))
			if got := flood(c, 200000, func(n int) error { return test.send(c, block, n) }); got != "ENHANCE_YOUR_CALM" {
				t.Errorf("got %q", got)
			}
		})
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("the other connection: %v", err)
	}
}

// grown runs do and says how much the heap had grown at its end, while hold kept what
// do left.
func grown(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestAnswersNobodyReads sees that a peer which opens calls and reads no answer is
// heard no more, and then cut off.
func TestAnswersNobodyReads(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = time.Second })
	c := hello(t, f)
	block := c.block(request("refuse", strings.Repeat("r", 2000))...)
	var sent int
	if n := grown(func() {
		for sent = 0; sent < 1<<20; sent++ {
			if err := c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*sent + 1), BlockFragment: block, EndHeaders: true, EndStream: true}); err != nil {
				return
			}
		}
	}); n > 32<<20 {
		t.Errorf("%d calls, whose answers nobody reads, hold %d bytes", sent, n)
	}
	if sent == 1<<20 {
		t.Error("it was never cut off")
	}
}

// TestHeaderBomb sees that a block which unfolds by the table is refused, and holds
// nothing.
func TestHeaderBomb(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	c.headers(1, true, request("bomb", strings.Repeat("b", 4000))...)
	c.outcome(1)
	c.frame(http2.FrameHeaders, 4|1, 3, string(c.block(request()...))+strings.Repeat("\xbe", 60000))
	if got := c.outcome(3); !strings.HasPrefix(got, "8: headers larger than") {
		t.Error(got)
	}
	if got := c.ping(); got != "alive" {
		t.Error(got)
	}
}

// TestAnnounced sees that messages whose length is announced and that never come take
// little memory.
func TestAnnounced(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = time.Second })
	c := hello(t, f)
	block := c.block(request()...)
	const calls = 1000
	for i := range calls {
		id := uint32(2*i + 1)
		c.must(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true}))
		c.must(c.fr.WriteData(id, false, append(binary.BigEndian.AppendUint32([]byte{0}, 50<<20), 'x')))
	}
	c.ping()
	if n := f.memory.out.Load(); n > maxAhead+calls*(mistrusted+8) {
		t.Errorf("%d calls that sent a byte each hold %d bytes", calls, n)
	}
	// and they don't hold it for long
	if got := c.outcome(1); got != "4: the message did not arrive in time" {
		t.Error(got)
	}
	poll(t, "the memory comes back", func() bool { return f.memory.out.Load() == 0 })
}

// TestAnnouncedWhereMemoryIsScarce sees that lengths alone get next to nothing then.
func TestAnnouncedWhereMemoryIsScarce(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = time.Minute })
	f.memory.few.Store(true)
	c := hello(t, f)
	for id := uint32(1); id < 20; id += 2 {
		c.headers(id, false, request()...)
		c.must(c.fr.WriteData(id, false, append(binary.BigEndian.AppendUint32([]byte{0}, 1<<20), 'x')))
	}
	c.ping()
	if n := f.memory.out.Load(); n == 0 || n > 10*(mistrusted+8) {
		t.Errorf("10 calls that sent a byte each hold %d bytes", n)
	}
	c.must(c.fr.WriteData(1, false, make([]byte, 10000)))
	c.call(21, "hi")
	if got := c.outcome(21); got != "0 hi" {
		t.Error(got)
	}
	for id := uint32(1); id < 20; id += 2 {
		c.must(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	poll(t, "the memory comes back", func() bool { return f.memory.out.Load() == 0 })
}

// TestStalledFrame sees that a peer which stops in the middle of a frame is cut off.
func TestStalledFrame(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = 300 * time.Millisecond })
	c := hello(t, f)
	c.headers(1, false, request()...)
	c.write("\x00\x40\x00\x00\x00\x00\x00\x00\x01" + string(message(strings.Repeat("x", 100))))
	if got := c.outcome(1); got != "closed" {
		t.Error(got)
	}
	poll(t, "the memory comes back", func() bool { return f.memory.out.Load() == 0 })
}

// TestEndlessBurst sees that a reader which never finds its buffer empty keeps nothing
// of calls that are over, and that what it has to say leaves.
func TestEndlessBurst(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = 20 * time.Second })
	c := hello(t, f)
	block := c.block(request("refuse", "x", "pad", strings.Repeat("p", 9000))...)
	const calls = 1000
	answered := make(chan int, 1)
	go func() {
		n := 0
		for n < calls {
			f, err := c.fr.ReadFrame()
			if err != nil {
				break
			}
			if f.Header().Type == http2.FrameHeaders && f.Header().Flags.Has(http2.FlagHeadersEndStream) {
				n++
			}
		}
		answered <- n
	}()
	for i := range calls {
		c.must(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true}))
	}
	if n := <-answered; n < calls {
		t.Errorf("%d of %d were answered", n, calls)
	}
	if got := c.ping(); got != "alive" { // behind it the reader has nothing to remember
		t.Error(got)
	}
	for _, sc := range f.s.conns.All() {
		sc.mu.Lock()
		n := len(sc.late.ids)
		sc.mu.Unlock()
		if n > 2*maxLate {
			t.Errorf("%d calls are remembered", n)
		}
	}
}

// TestSmallMessagesPileUp sees that a streaming call's unread messages hold little more
// than their bytes, and come in order.
func TestSmallMessagesPileUp(t *testing.T) {
	f := start(t, nil)
	release := make(chan struct{})
	got := make(chan []int, 1)
	registerPile(f.s, func(receive func() ([]byte, error)) error {
		<-release
		var lengths []int
		for {
			b, err := receive()
			if err == io.EOF {
				got <- lengths
				return nil
			}
			if err != nil {
				return err
			}
			lengths = append(lengths, len(b))
		}
	})
	c := hello(t, f)
	c.headers(1, false, request(":path", "/test.Pile/Pile")...)
	const messages = 50000 // few enough for a busy machine: a client waits five seconds for an answer
	held := grown(func() {
		var b []byte
		for i := range messages {
			n := i % 8
			if i%1000 == 999 {
				n = packBelow + 100
			}
			b = append(b, message(strings.Repeat("m", n))...)
			if len(b) > 14000 {
				c.must(c.fr.WriteData(1, false, b))
				b = b[:0]
			}
		}
		c.must(c.fr.WriteData(1, true, b))
		if got := c.ping(); got != "alive" {
			t.Error(got)
		}
	})
	if held > 4<<20 {
		t.Errorf("%d messages hold %d bytes", messages, held)
	}
	t.Logf("%d messages hold %d bytes", messages, held)
	close(release)
	if got := c.outcome(1); got != "0" {
		t.Fatal(got)
	}
	lengths := <-got
	if len(lengths) != messages {
		t.Fatalf("%d messages arrived", len(lengths))
	}
	for i, n := range lengths {
		want := i % 8
		if i%1000 == 999 {
			want = packBelow + 100
		}
		if n != want {
			t.Fatalf("message %d has %d bytes, want %d", i, n, want)
		}
	}
}

// TestCompressionBomb sees that a small message which decompresses to a large one is
// refused like a large one.
func TestCompressionBomb(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	f.memory.most.Store(1 << 20)
	in := make([]byte, 8<<20)
	_, err := call(t.Context(), cc, in, gzipped())
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
}

// TestManyResets sees that calls which are reset leave nothing behind.
func TestManyResets(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	for range 300 {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "do", "wait"), 5*time.Millisecond)
		_, _ = call(ctx, cc, make([]byte, 1000)) // its time is too short
		cancel()
	}
	if _, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	poll(t, "nothing is left", func() bool {
		for _, c := range f.s.conns.All() {
			c.mu.Lock()
			n := c.streams.n + c.calls
			c.mu.Unlock()
			return n == 0
		}
		return false
	})
}

// TestResetBeforeDispatch sees that a call which is reset by us in the burst in which it
// came is ended all the same: what its Begin took in would be lost with it.
func TestResetBeforeDispatch(t *testing.T) {
	for _, body := range []string{"", "all of it"} {
		f := start(t, nil)
		c := hello(t, f)
		var burst bytes.Buffer
		fr := http2.NewFramer(&burst, nil)
		c.must(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(request()...), EndHeaders: true}))
		if body != "" {
			c.must(fr.WriteData(1, false, message(body)))
		}
		c.must(fr.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4))) // opens nothing: a fault
		c.must(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: c.block(request("refuse", "it")...), EndHeaders: true, EndStream: true}))
		c.must(fr.WriteData(3, true, nil)) // on a stream that is over: makes the reader forget
		c.write(burst.String())
		if got := c.outcome(1); got != "reset PROTOCOL_ERROR" {
			t.Fatalf("%q: got %s", body, got)
		}
		if got := c.ping(); got != "alive" {
			t.Fatalf("%q: got %s", body, got)
		}
		if n := f.echo.aborted.Load(); n != 1 {
			t.Errorf("%q: the call was aborted %d times, want once", body, n)
		}
	}
}

// TestQuietCalls sees that goroutines for calls which bring no message are bounded, and
// that this holds up no call whose message comes.
func TestQuietCalls(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxQuiet, c.MaxQuietAll, c.MaxPingStrikes = 3, 5, 0 })
	quiet := func(c *rawConn, id uint32, more ...string) {
		c.headers(id, false, request(more...)...)
		c.ping() // it has settled
	}
	watch := []string{":path", "/grpc.health.v1.Health/Watch"}
	first, other := hello(t, f), hello(t, f)
	for id := uint32(1); id < 12; id += 2 {
		quiet(first, id)
	}
	quiet(other, 1, watch...)
	quiet(other, 3)
	if n := f.s.quiet.Load(); n != 5 {
		t.Fatalf("%d calls wait on goroutines, want 5", n)
	}
	quiet(first, 13, watch...)
	if got := first.outcome(13); got != "8: too many calls wait for their first message: 3 on this connection" {
		t.Errorf("a stream beyond the bound: %s", got)
	}
	for _, id := range []uint32{11, 1, 9} {
		first.must(first.fr.WriteData(id, true, message("heard")))
		if got := first.outcome(id); got != "0 heard" {
			t.Errorf("call %d's message came: %s", id, got)
		}
	}
	first.must(first.fr.WriteRSTStream(3, http2.ErrCodeCancel))
	first.must(first.fr.WriteRSTStream(7, http2.ErrCodeCancel))
	for _, c := range []*rawConn{first, other} {
		_ = c.nc.Close()
	}
	poll(t, "nothing is counted any more", func() bool { return f.s.quiet.Load() == 0 })
}
