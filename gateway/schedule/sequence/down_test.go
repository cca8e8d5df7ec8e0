package sequence_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// What waits of a sequence whose state went with its worker hears of it at once, not
// when something else happens.
func TestDownTellsWhoWaits(t *testing.T) {
	cfg, seen := config(), &counts{}
	cfg.States = nil
	cfg.Direct = sequence.Direct{Utilization: 1, MaxQueueDelay: time.Hour}
	s, _ := begin(t, cfg, seen, nil, &adder{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, _, err := do(ctx, s, request(1, 1, true, false))
		ended <- err
	}()
	for s.Pending() == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	s.InstanceDown(0)
	if err := <-ended; infer.ReasonOf(err) != infer.ReasonSequenceLost || infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("got %v", err)
	}
	for seen.queued.Load() != 0 && ctx.Err() == nil {
		runtime.Gosched() // it is counted after the caller was told
	}
	if n := seen.queued.Load(); n != 0 || s.Pending() != 0 {
		t.Errorf("%d counted and %d pending at the end", n, s.Pending())
	}
}
