package h2

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// Whatever clients of one loop do on connections that rest and wake all the time — small and
// large calls, refused ones, failed ones, calls that are given up, pauses, looks of watch — each
// call has its own answer, and in the end nothing is held.
func TestParkedAtRandom(t *testing.T) {
	l := looptest.Start(t)
	f := start(t, func(c *Config) {
		c.Loops, c.WriteTimeout, c.MaxStreams = []*loop.Loop{l}, 20*time.Second, 64
		c.KeepaliveTime, c.KeepaliveTimeout = 2*time.Millisecond, 20*time.Second
	})
	f.s.turnTime = turnTime
	seed := rand.Uint64()
	var all sync.WaitGroup
	for i := range uint64(4) {
		cc := f.dial(t)
		for k := range uint64(3) {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, 8*i+k))
				for range 80 {
					if err := oneAtRandom(t.Context(), rnd, func(ctx context.Context, in []byte) ([]byte, error) { return call(ctx, cc, in) }); err != "" {
						t.Errorf("seed %d: %s", seed, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	poll(t, "no call is left", func() bool {
		for _, c := range f.s.conns.All() {
			c.mu.Lock()
			n := c.calls + c.streams.n
			c.mu.Unlock()
			if n > 0 {
				return false
			}
		}
		return f.echo.running.Load() == 0 && f.memory.out.Load() == 0
	})
}

// oneAtRandom makes a call, and says what is wrong with its end.
func oneAtRandom(ctx context.Context, rnd *rand.Rand, call func(context.Context, []byte) ([]byte, error)) string {
	in := make([]byte, rnd.IntN(200))
	if rnd.IntN(20) == 0 {
		in = make([]byte, rnd.IntN(200<<10))
	}
	for i := range in {
		in[i] = byte(rnd.Uint32())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	want := codes.OK
	switch rnd.IntN(12) {
	case 0:
		ctx, want = metadata.AppendToOutgoingContext(ctx, "do", "fail"), codes.FailedPrecondition
	case 1:
		ctx, want = metadata.AppendToOutgoingContext(ctx, "refuse", "you"), codes.PermissionDenied
	case 2:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "do", "wait"), time.Duration(1+rnd.IntN(3000))*time.Microsecond)
		defer stop()
		want = codes.DeadlineExceeded
	case 3:
		pause := time.NewTimer(time.Duration(rnd.IntN(6000)) * time.Microsecond)
		<-pause.C
	}
	out, err := call(ctx, in)
	switch got := status.Code(err); {
	case got != want:
		return "got " + got.String() + ", want " + want.String() + ": " + err.Error()
	case err == nil && !bytes.Equal(in, out):
		return "another call's answer"
	}
	return ""
}
