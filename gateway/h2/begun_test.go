package h2

import (
	"context"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// begun is a unary service that sends its header, and its answer when it is told to.
func begun(answer <-chan struct{}) *grpc.ServiceDesc {
	serve := func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var b []byte
		if err := dec(&b); err != nil {
			return nil, err
		}
		if err := grpc.SendHeader(ctx, nil); err != nil {
			return nil, err
		}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return &b, nil
	}
	return &grpc.ServiceDesc{ServiceName: "test.Begun", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: serve}}}
}

func startBegun(t *testing.T, change func(*Config), settings ...http2.Setting) (*rawConn, chan struct{}) {
	f := start(t, change)
	answer := make(chan struct{})
	f.s.deps.Codec = raw{}
	f.s.RegisterService(begun(answer), struct{}{})
	c := hello(t, f, settings...)
	c.call(1, "x", ":path", "/test.Begun/Echo")
	for c.seen[1] == nil {
		if _, err := c.next(); err != nil {
			t.Fatal(err)
		}
	}
	return c, answer
}

// TestTableShrinksBetweenHeaderAndTrailers sees that the first block behind a smaller header
// table says so (RFC 9113, 4.3.1) also where it is a call's trailers.
func TestTableShrinksBetweenHeaderAndTrailers(t *testing.T) {
	c, answer := startBegun(t, manyPings)
	var said []bool
	c.saw = func(b []byte) { said = append(said, b[0] == sizeUpdate) }
	c.frame(http2.FrameSettings, 0, 0, setting(settingTableSize, 0))
	if got := c.ping(); got != "alive" {
		t.Fatal(got)
	}
	close(answer)
	if got := c.outcome(1); got != "0 x" || len(said) != 1 || !said[0] {
		t.Errorf("got %q; size updates in the blocks: %v", got, said)
	}
}

// TestKeepaliveTimeoutAfterARest sees that a client which may not be pinged for long, since it
// was pinged in vain, has all of the timeout to answer the next ping.
func TestKeepaliveTimeoutAfterARest(t *testing.T) {
	c, answer := startBegun(t, func(c *Config) {
		c.KeepaliveTime, c.KeepaliveTimeout, c.MaxPingsWithoutData = 100*time.Millisecond, 1500*time.Millisecond, 1
		c.PermitWithoutCalls = true
	})
	rest := time.AfterFunc(2*time.Second, func() { close(answer) }) // longer than both together
	defer rest.Stop()
	pings := 0
	for pings < 2 {
		fr, err := c.next()
		if err != nil {
			t.Fatalf("after %d pings: %v", pings, err)
		}
		if p, ok := fr.(*http2.PingFrame); ok && !p.IsAck() {
			if pings++; pings == 2 {
				time.AfterFunc(500*time.Millisecond, func() { _ = c.fr.WritePing(true, p.Data) }) // seen below if it fails
				break
			}
			c.must(c.fr.WritePing(true, p.Data))
		}
	}
	c.must(c.nc.SetReadDeadline(time.Now().Add(time.Second)))
	for {
		_, err := c.fr.ReadFrame()
		if err == nil {
			continue
		}
		if e, ok := err.(interface{ Timeout() bool }); !ok || !e.Timeout() {
			t.Errorf("cut off before the timeout: %v", err)
		}
		return
	}
}
