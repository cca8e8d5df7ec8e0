package drive_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// by is a request of a caller.
func by(who, id string) *infer.Request {
	r := request(id, 1)
	r.Caller = who
	return r
}

// The newest request of who has most in a full queue gives way, and hears why.
func TestFullQueueIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		cfg := dynamic.Config{}
		cfg.Policy.MaxSize = 3
		s := batcher(t, cfg, deps(mem, nil, f))
		var callers []*caller
		for _, r := range []*infer.Request{by("a", "x"), by("a", "1"), by("a", "2"), by("a", "3"), by("b", "4"), by("a", "5")} {
			callers = append(callers, start(t.Context(), s, r))
			synctest.Wait()
		}
		for i, want := range map[int]infer.Reason{3: infer.ReasonFairShare, 5: infer.ReasonQueueFull} {
			err := callers[i].wait(t)
			if infer.CodeOf(err) != infer.Unavailable || infer.ReasonOf(err) != want {
				t.Errorf("request %d: %v, reason %s, want %s", i, err, infer.ReasonOf(err), want)
			}
		}
		check(t, "pending", s.Pending(), 3)
		f.answer(t)
		synctest.Wait()
		f.answer(t)
		for _, i := range []int{0, 1, 2, 4} {
			check(t, "error", callers[i].wait(t), nil)
		}
		check(t, "pending", s.Pending(), 0)
		check(t, "memory", mem.inUse(), int64(0))
	})
}

// A request whose caller leaves tells what of its batch's time was his; one that only
// waited tells of none.
func TestAbandonedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		first, waiting := request("a", 1), request("b", 1)
		callers := []*caller{start(ctx, s, first)}
		synctest.Wait()
		callers = append(callers, start(ctx, s, waiting))
		time.Sleep(3 * time.Second) // virtual
		leave()
		for _, c := range callers {
			check(t, "left", infer.CodeOf(c.wait(t)), infer.Cancelled)
		}
		check(t, "abandoned", time.Duration(first.Times.Abandoned), 3*time.Second)
		check(t, "of one that waited", waiting.Times.Abandoned, int64(0))
		f.answer(t)
		synctest.Wait()
	})
}

// At random: each request ends once, answered or refused, and all memory comes back.
func TestSharesAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 6))
			mem := newMemory(1 << 20)
			var held []*infer.Batch
			f := &fake{executed: func(b *infer.Batch) { held = append(held, b) }}
			cfg := dynamic.Config{PreserveOrdering: seed%2 == 1}
			cfg.Policy.MaxSize = 5
			s := batcher(t, cfg, deps(mem, nil, f))
			var answered, refused, other atomic.Int64
			const n = 300
			for i := range n {
				r := by(fmt.Sprint("p", rng.IntN(4)), fmt.Sprint(i))
				go func() {
					switch err := s.Do(t.Context(), r, drop); {
					case err == nil:
						answered.Add(1)
					case infer.ReasonOf(err) == infer.ReasonFairShare || infer.ReasonOf(err) == infer.ReasonQueueFull:
						refused.Add(1)
					default:
						other.Add(1)
					}
				}()
				synctest.Wait()
				if len(held) > 0 && rng.IntN(3) == 0 {
					b := held[0]
					held = held[1:]
					b.Deliver(echo(b))
					synctest.Wait()
				}
			}
			for len(held) > 0 {
				b := held[0]
				held = held[1:]
				b.Deliver(echo(b))
				synctest.Wait()
			}
			if answered.Load()+refused.Load() != n || other.Load() != 0 || refused.Load() == 0 {
				t.Errorf("seed %d: %d answered, %d refused, %d otherwise", seed, answered.Load(), refused.Load(), other.Load())
			}
			check(t, "memory", mem.inUse(), int64(0))
		})
	}
}
