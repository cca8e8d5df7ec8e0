package h2

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// isParked says where the only connection of a server is.
func isParked(f *fixture) bool {
	all := f.s.conns.All()
	if len(all) != 1 {
		return false
	}
	c := all[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd >= 0
}

// A connection of small calls rests with the loop, a large message or answer gives it its
// goroutine, and it needs more small calls then to rest again.
func TestParks(t *testing.T) {
	f := start(t, func(c *Config) { c.Loops = []*loop.Loop{looptest.Start(t)} })
	f.s.settled = settledAfter
	cc := f.dial(t)
	echo := func(n int) {
		t.Helper()
		in := random(t, n)
		if out, err := call(t.Context(), cc, in); err != nil || !bytes.Equal(in, out) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	for range settledAfter - 1 {
		echo(10)
	}
	if isParked(f) {
		t.Fatal("it is parked too soon")
	}
	echo(10)
	small := func() bool { // it may be written to when it could be parked
		if isParked(f) {
			return true
		}
		echo(10)
		return false
	}
	poll(t, "it is parked after small calls", small)
	echo(100)
	if !isParked(f) {
		t.Error("a small call takes a goroutine")
	}
	echo(600 << 10)
	poll(t, "it has a goroutine while large messages come", func() bool { return !isParked(f) })
	for range settledAfter {
		echo(10)
	}
	if isParked(f) {
		t.Error("it is parked too soon after a large message")
	}
	for range -heavy + settledAfter {
		echo(10)
	}
	poll(t, "it is parked again", small)
}

// What comes in any pieces, in the middle of any frame, is the same to a parked connection;
// and its client may leave anywhere.
func TestParkedInPieces(t *testing.T) {
	f := start(t, func(c *Config) { c.Loops = []*loop.Loop{looptest.Start(t)} })
	for round := range 30 {
		c := hello(t, f)
		c.call(1, "x")
		if got := c.outcome(1); got != "0 x" {
			t.Fatal(got)
		}
		poll(t, "it is parked", func() bool { return isParked(f) || c.ping() != "alive" }) // it is when nothing is being written
		var sent bytes.Buffer
		c.fr = http2.NewFramer(&sent, c.nc)
		c.fr.AllowIllegalWrites = true
		const calls = 6
		for i := range calls {
			c.call(uint32(2*i+3), strings.Repeat("x", rand.IntN(3000)))
		}
		all := sent.Bytes()
		if round%3 == 2 {
			all = all[:rand.IntN(len(all))]
		}
		for len(all) > 0 {
			n := min(len(all), 1+rand.IntN(200))
			if _, err := c.nc.Write(all[:n]); err != nil {
				t.Fatal(err)
			}
			all = all[n:]
		}
		if round%3 < 2 {
			for i := range calls {
				if got := c.outcome(uint32(2*i + 3)); !strings.HasPrefix(got, "0") {
					t.Fatalf("call %d: %s", i, got)
				}
			}
		}
		_ = c.nc.Close()
		poll(t, "the connection ends", func() bool { return len(f.s.conns.All()) == 0 })
	}
}

// A client that reads no answers for a while gets them all, and in the meantime others of
// the same loop are served.
func TestParkedSlowReader(t *testing.T) {
	l := looptest.Start(t)
	slow := start(t, func(c *Config) { c.Loops = []*loop.Loop{l} })
	c := hello(t, slow, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.must(c.fr.WriteWindowUpdate(0, 1<<30))
	const calls, size = 400, 30 << 10
	var sent sync.WaitGroup
	sent.Go(func() {
		for i := range uint32(calls) {
			c.call(2*i+1, strings.Repeat(string('a'+rune(i%26)), size))
		}
	})
	poll(t, "one who reads nothing has a goroutine", func() bool { return !isParked(slow) })
	quick := start(t, func(c *Config) { c.Loops = []*loop.Loop{l} })
	cc := quick.dial(t)
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := call(ctx, cc, []byte("quick")); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	for i := range uint32(calls) {
		if got, want := c.outcome(2*i+1), "0 "+strings.Repeat(string('a'+rune(i%26)), size); got != want {
			t.Fatalf("call %d: %d bytes, want %d", i, len(got), len(want))
		}
	}
	sent.Wait()
}

// A server that is shut down lets a parked connection finish its calls; one that is stopped
// does not.
func TestParkedShutdown(t *testing.T) {
	for _, gently := range []bool{true, false} {
		t.Run(fmt.Sprintf("gently=%v", gently), func(t *testing.T) {
			f := start(t, func(c *Config) { c.Loops = []*loop.Loop{looptest.Start(t)} })
			c := hello(t, f)
			c.call(1, "x")
			if got := c.outcome(1); got != "0 x" {
				t.Fatal(got)
			}
			poll(t, "it is parked", func() bool { return isParked(f) || c.ping() != "alive" })
			if !gently {
				f.s.Stop()
			} else if err := f.s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, c.nc); err != nil {
				t.Errorf("its end: %v", err)
			}
		})
	}
}
