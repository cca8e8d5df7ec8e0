package dynamic

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// batcher decides what a batch is. Its state besides its settings is what the last
// delays were good for.
//
// The rules are the original's (GetDynamicBatch of its dynamic batch scheduler):
// walking from the first request, which without priorities is the oldest, a batch ends before the request that has another
// shape or would exceed the max batch size. The largest preferred size met on the way
// leaves at once; so does what is there before the request that would exceed the
// largest preferred size when none was met. Otherwise a batch that can't grow leaves,
// and one that can waits until its oldest request is as old as the delay; from then
// on everything that fits leaves, preferred or not.
//
// Beyond the original: a delay is for requests that come meanwhile, and where none ever
// comes (one client that waits for each answer, say) it only costs. After
// fruitlessDelays in a row without a newcomer batches leave at once; every probeEvery-th
// waits all the same, and one newcomer brings the delays back.
type batcher struct {
	max       int
	preferred []int // ascending
	target    int   // the largest preferred size, or max
	delay     int64

	holding   bool
	heldFor   int64 // At of the oldest request of the batch that is held back
	heldCount int   // requests of it when that began
	fruitless int   // delays in a row that nobody came in
	spared    int   // batches that left at once for that
}

const (
	fruitlessDelays = 8
	probeEvery      = 16
)

func newBatcher(maxBatch int, preferred []int, delay time.Duration) *batcher {
	b := &batcher{max: maxBatch, preferred: sortedCopy(preferred), target: maxBatch, delay: int64(delay)}
	if n := len(b.preferred); n > 0 {
		b.target = b.preferred[n-1]
	}
	return b
}

// Cut is queue.Cutter. It walks no further than one batch.
func (b *batcher) Cut(head *queue.Entry, now int64) (int, int64) {
	var (
		n, rows int
		best    int // requests up to the best place to cut; 0: none met
		stuck   bool
	)
	oldest := head.At
	for e := head; e != nil; e = e.Next() {
		if n > 0 {
			if rows+e.Rows > b.target && best == 0 {
				best = n
			}
			if rows+e.Rows > b.max || !bytes.Equal(e.Key, head.Key) {
				stuck = true
				break
			}
		}
		n++
		rows += e.Rows
		oldest = min(oldest, e.At)
		if slices.Contains(b.preferred, rows) {
			best = n
		}
	}
	late := b.delay > 0 && (now == math.MaxInt64 || now-oldest >= b.delay)
	switch {
	case best > 0 && !late:
		b.leaves(oldest, best, now)
		return best, 0
	case stuck || rows >= b.target || late || b.delay == 0:
		b.leaves(oldest, n, now)
		return n, 0
	}
	if !b.holding || b.heldFor != oldest {
		if b.spare() {
			return n, 0
		}
		b.holding, b.heldFor, b.heldCount = true, oldest, n
	}
	return 0, oldest + b.delay
}

// spare says that a delay which begins now would be in vain.
func (b *batcher) spare() bool {
	if b.fruitless < fruitlessDelays {
		return false
	}
	b.spared++
	return b.spared%probeEvery != 0
}

// leaves learns from a batch that was held back, when n of its requests leave.
func (b *batcher) leaves(oldest int64, n int, now int64) {
	if !b.holding || b.heldFor != oldest || now == math.MaxInt64 {
		return
	}
	b.holding = false
	if n > b.heldCount {
		b.fruitless = 0
		return
	}
	b.fruitless++
}
