package h2

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/infer"
)

// laborious is a Method that works for a time, as on a token, and then refuses.
type laborious time.Duration

func (l laborious) Begin(context.Context, Call) (Call, error) {
	for end := infer.Now() + int64(l); infer.Now() < end; {
	}
	return nil, status.Error(codes.Unauthenticated, "no")
}

// A connection whose calls take long to decide on has a goroutine, though they are small:
// others of the loop would wait for each.
func TestLongCallsAreNotForTheLoop(t *testing.T) {
	f := start(t, func(c *Config) { c.Loops = []*loop.Loop{looptest.Start(t)} })
	f.s.turnTime = turnTime
	f.s.handle("/test.Long/Call", laborious(5*time.Millisecond))
	c := hello(t, f)
	c.call(1, "x")
	if got := c.outcome(1); got != "0 x" {
		t.Fatal(got)
	}
	long := request(":path", "/test.Long/Call")
	for i := range uint32(3) {
		c.headers(3+2*i, true, long...)
		if got := c.outcome(3 + 2*i); got != "16: no" {
			t.Fatal(got)
		}
	}
	id := uint32(11)
	short := func() {
		c.call(id, "y")
		if got := c.outcome(id); got != "0 y" {
			t.Fatal(got)
		}
		id += 2
	}
	for range 20 {
		short()
		if isParked(f) {
			t.Fatal("the loop has it again at once")
		}
	}
	poll(t, "it is parked again after many short ones", func() bool { short(); return isParked(f) })
}
