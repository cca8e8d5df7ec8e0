package dynamic

import (
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// NewCutter makes the rules by which this batcher forms batches, for the sequence
// batcher, which batches the next requests of its candidates in the same way. It keeps
// what it learned from delays, so each line has its own.
func NewCutter(maxBatch int, preferred []int, delay time.Duration) queue.Cutter {
	return newBatcher(maxBatch, preferred, delay)
}
