package h2

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// waits is a Method that refuses every call, with a word that waits.
type waits struct {
	told    chan struct{} // gets a token by each that is about to wait
	release chan struct{}
}

type waitingRefusal struct {
	error
	w *waits
}

func (r *waitingRefusal) Tell() error {
	r.w.told <- struct{}{}
	<-r.w.release
	return status.Error(codes.PermissionDenied, "no")
}

func (w *waits) Begin(context.Context, Call) (Call, error) {
	return nil, &waitingRefusal{fmt.Errorf("not to be seen"), w}
}

// Who refuses may have to wait until it is told, as where nobody reads the log: neither the
// others of the loop nor the connection's other calls wait for that, and the call's message is
// passed over meanwhile. Calls that wait so count as others do.
func TestRefusalsHoldNobody(t *testing.T) {
	l := looptest.Start(t)
	loops := func(c *Config) { c.Loops, c.MaxStreams = []*loop.Loop{l}, 4 }
	w := &waits{told: make(chan struct{}, 100), release: make(chan struct{})}
	f, quick := start(t, loops), start(t, loops)
	f.s.handle("/test.Waits/Call", w)
	c, cc := hello(t, f), quick.dial(t)
	for i := range uint32(3) {
		c.call(2*i+1, "x")
		if got := c.outcome(2*i + 1); got != "0 x" {
			t.Fatal(got)
		}
	}
	refused := request(":path", "/test.Waits/Call")
	c.headers(7, true, refused...)
	c.headers(9, false, refused...)
	c.headers(11, false, refused...)
	for range 3 {
		<-w.told
	}
	c.must(c.fr.WriteData(9, true, message("passed over")))
	c.must(c.fr.WriteData(11, false, message("cut")[:6]))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 20 {
		if _, err := call(metadata.AppendToOutgoingContext(ctx, "do", "now"), cc, []byte("x")); err != nil {
			t.Fatalf("another connection: %v", err)
		}
	}
	c.call(13, "y")
	if got := c.outcome(13); got != "0 y" {
		t.Fatal(got)
	}
	c.headers(15, true, refused...)
	<-w.told
	c.headers(17, true, refused...)
	if got := c.outcome(17); got != "reset REFUSED_STREAM" {
		t.Errorf("the fifth at a time: %s", got)
	}
	c.must(c.fr.WriteRSTStream(15, 8))
	close(w.release)
	for _, id := range []uint32{7, 9, 11} {
		if got := c.outcome(id); got != "7: no" {
			t.Errorf("stream %d: %s", id, got)
		}
	}
	c.call(19, "z")
	if got := c.outcome(19); got != "0 z" {
		t.Errorf("a call afterwards: %s", got)
	}
}
