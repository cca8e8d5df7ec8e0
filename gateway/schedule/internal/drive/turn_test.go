package drive_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// What is answered without the queue waits for all that was queued before it, and for
// nothing that comes after it.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{PreserveOrdering: true}, deps(newMemory(1<<20), nil, f))
		first := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		var over atomic.Int32
		turn := func(name string, ctx context.Context, want infer.Code) {
			go func() {
				err := s.Turn(ctx, request(name, 1))
				if (err != nil) != (want != infer.Unknown) || err != nil && infer.CodeOf(err) != want {
					t.Errorf("%s: %v", name, err)
				}
				over.Add(1)
			}()
			synctest.Wait()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		turn("leaves", short, infer.Cancelled)
		turn("waits", t.Context(), infer.Unknown)
		last := start(t.Context(), s, request("b", 1))
		synctest.Wait()
		check(t, "turns while the first runs", over.Load(), 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, "turns after one left", over.Load(), 1)
		f.answer(t)
		synctest.Wait()
		check(t, "error of the first", first.wait(t), nil)
		check(t, "turns after the first was answered", over.Load(), 2)
		f.answer(t)
		check(t, "error of the last", last.wait(t), nil)
		turn("nothing before it", t.Context(), infer.Unknown)
		check(t, "turns", over.Load(), 3)
	})
}

func TestNoTurnsWithoutOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		c := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		check(t, "error", s.Turn(t.Context(), request("b", 1)), nil)
		f.answer(t)
		check(t, "error", c.wait(t), nil)
	})
}
