package drive_test

import (
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// faulty is a stage that lays nothing out once it is told so, and sees how deep it is
// called.
type faulty struct {
	on    atomic.Bool
	depth int
}

var errLayout = errors.New("no memory for the batch")

func (f *faulty) Begin(*infer.Batch, []*queue.Entry) error {
	if !f.on.Load() {
		return nil
	}
	f.depth = max(f.depth, runtime.Callers(0, make([]uintptr, 4096)))
	return errLayout
}

func (f *faulty) End(*infer.Batch, []*queue.Entry, *infer.Result) {}

type single struct{}

func (single) Cut(*queue.Entry, int64) (int, int64) { return 1, 0 }

// A long line whose every batch fails before it is posted ends without a call for each
// of them on the stack, and every caller hears why.
func TestFaultsOfALongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		f, stage, seen := &fake{}, &faulty{}, &counts{}
		d := schedule.Deps{Executors: []infer.Executor{f}, Observer: seen, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		s, err := drive.New(drive.Config{Model: model(0), Make: func() (drive.Core, drive.Stage) {
			return queue.New(single{}, queue.Lines{Default: queue.Line{Limit: n}}, 1), stage
		}}, d)
		if err != nil {
			t.Fatal(err)
		}
		first := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		var line []*caller
		for range n {
			line = append(line, start(t.Context(), s, request("b", 1)))
		}
		synctest.Wait()
		stage.on.Store(true)
		f.next(t).Deliver(&infer.Result{Err: errLayout})
		for _, c := range append(line, first) {
			if err := c.wait(t); !errors.Is(err, errLayout) {
				t.Fatalf("got %v", err)
			}
		}
		if stage.depth > 64 {
			t.Errorf("the stage was called from %d functions deep", stage.depth)
		}
		check(t, "pending", s.Pending(), 0)
		check(t, "queued", seen.queued.Load(), 0)
		check(t, "drain", s.Drain(t.Context()), nil)
	})
}
