package h2

import (
	"context"
	"testing"

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
