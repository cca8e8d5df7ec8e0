package h2

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// A large answer that is written where it is made, and does not fit into the socket, holds
// up nobody and comes whole.
func TestLargeAnswerInLeisure(t *testing.T) {
	l := looptest.Start(t)
	f := start(t, func(c *Config) { c.Loops = []*loop.Loop{l} })
	other := start(t, func(c *Config) { c.Loops = []*loop.Loop{l} }).dial(t)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.must(c.fr.WriteWindowUpdate(0, 1<<30))
	if got := c.ping(); got != "alive" {
		t.Fatal(got)
	}
	server := f.s.conns.All()[0]
	server.mu.Lock()
	if !server.bare && server.nc != nil {
		if err := server.nc.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Error(err)
		}
	}
	server.mu.Unlock()
	for i := range uint32(8) {
		body := strings.Repeat(string('a'+rune(i)), 900<<10)
		poll(t, "there is leisure", func() bool {
			_, ok := l.Takes(900 << 10)
			return ok
		})
		c.call(2*i+1, body, "do", "now")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if got, err := call(ctx, other, []byte("quick")); err != nil || string(got) != "quick" {
			t.Fatalf("another's call: %q, %v", got, err)
		}
		cancel()
		if got := c.outcome(2*i + 1); got != "0 "+body {
			t.Fatalf("call %d: %d bytes", i, len(got))
		}
	}
}
