package dynamic

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// batcher decides what a batch is. It has no state besides its settings.
//
// The rules are the original's (GetDynamicBatch of its dynamic batch scheduler):
// walking from the oldest request, a batch ends before the request that has another
// shape or would exceed the max batch size. The largest preferred size met on the way
// leaves at once; so does what is there before the request that would exceed the
// largest preferred size when none was met. Otherwise a batch that can't grow leaves,
// and one that can waits until its oldest request is as old as the delay; from then
// on everything that fits leaves, preferred or not.
type batcher struct {
	max       int
	preferred []int // ascending
	target    int   // the largest preferred size, or max
	delay     int64
}

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
		if slices.Contains(b.preferred, rows) {
			best = n
		}
	}
	late := b.delay > 0 && (now == math.MaxInt64 || now-head.At >= b.delay)
	switch {
	case best > 0 && !late:
		return best, 0
	case stuck || rows >= b.target || late || b.delay == 0:
		return n, 0
	}
	return 0, head.At + b.delay
}
