package gateway

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/internal/tick"
)

// The bounds of what a process at rest keeps for itself: Go collects by what was allocated,
// so that one which does nothing any more would hold a burst's garbage for minutes, and the
// pages of it longer.
const (
	spareEvery = 10 * time.Second
	spareMost  = 64 << 20       // bytes of garbage and free pages that may stay
	spareBusy  = spareEvery / 8 // of processor time in spareEvery: not at rest
)

// spare is what decides whether memory goes back. Bytes.
type spare struct {
	cpu           time.Duration // that the process used so far
	heap          int64         // objects, garbage among them
	live          int64         // objects that the last collection found alive
	free          int64         // pages without objects that were not given back
	collectedOnce bool
}

// due says that memory should be given back: nothing much happened since before, and much
// of it is of no use.
func (s spare) due(before spare) bool {
	garbage := int64(0)
	if s.collectedOnce {
		garbage = max(0, s.heap-s.live)
	}
	return s.cpu-before.cpu < spareBusy && garbage+s.free > spareMost
}

// giveBack gives memory back to the system whenever the process is at rest, until ctx ends.
func (g *Gateway) giveBack(ctx context.Context) {
	look := tick.New(spareEvery)
	defer look.Stop()
	before := readSpare()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			look.Next()
		}
		now := readSpare()
		if now.due(before) {
			debug.FreeOSMemory()
			now = readSpare()
		}
		before = now
	}
}

func readSpare() spare {
	all := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(all)
	value := func(i int) int64 {
		if all[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return int64(all[i].Value.Uint64())
	}
	s := spare{heap: value(0), live: value(1), free: value(2), collectedOnce: value(3) > 0}
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) == nil {
		s.cpu = time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	return s
}
