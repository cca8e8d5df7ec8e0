package sequence_test

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// A sequence ends with a request of it that no worker served in time: none of its requests is
// executed as if the one before it had been. One that waits for no answer lives on where its state
// is in the gateway.
func TestUnservedEndsSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, seen := config(), &counts{}
		cfg.Idle = time.Hour
		s, _ := beginWith(t, cfg, schedule.Deps{Observer: seen, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
			Log: slog.New(slog.DiscardHandler), WorkerWait: 30 * time.Second}, &adder{})
		send := func(id uint64, value int, start bool) (int, error) {
			sum, _, err := do(t.Context(), s, request(id, value, start, false))
			return sum, err
		}
		if sum, err := send(1, 5, true); sum != 5 || err != nil {
			t.Fatalf("got %d, %v", sum, err)
		}
		if sum, err := send(2, 6, true); sum != 6 || err != nil {
			t.Fatalf("got %d, %v", sum, err)
		}
		s.InstanceDown(0)
		begun := time.Now()
		failed := make(chan error)
		for id := uint64(2); id < 5; id++ { // one goes on, two begin
			go func() {
				_, err := send(id, 1, id > 2)
				failed <- err
			}()
		}
		for range 3 {
			if err := <-failed; infer.CodeOf(err) != infer.Unavailable || infer.ReasonOf(err) != infer.ReasonNotReady {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("they waited %v", took)
		}
		s.InstanceUp(0)
		for id := uint64(2); id < 5; id++ {
			if _, err := send(id, 1, false); infer.CodeOf(err) != infer.InvalidArg {
				t.Errorf("sequence %d goes on: %v", id, err)
			}
			if sum, err := send(id, 7, true); sum != 7 || err != nil {
				t.Errorf("sequence %d begins anew: %d, %v", id, sum, err)
			}
		}
		if sum, err := send(1, 4, false); sum != 9 || err != nil {
			t.Errorf("got %d, %v", sum, err)
		}
		if n := seen.queued.Load(); n != 0 || s.Pending() != 0 {
			t.Errorf("%d counted and %d pending at the end", n, s.Pending())
		}
	})
}
