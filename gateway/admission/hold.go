package admission

import "sync/atomic"

// counter counts what is held until it is given back: open calls, or bytes. The zero
// value holds nothing. Safe for concurrent use.
type counter struct {
	used atomic.Int64
	mean atomic.Int64 // nanoseconds for which something is held, over the last few
}

// take holds n more if at most most are held then.
func (c *counter) take(most, n int64) bool {
	for {
		used := c.used.Load()
		if n > most-used {
			return false
		}
		if c.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// force holds n more, whatever is held.
func (c *counter) force(n int64) { c.used.Add(n) }

// release gives back n that were held for so long.
func (c *counter) release(n, took int64) {
	c.used.Add(-n)
	if took > 0 {
		// two at a time may lose one of their figures, which a mean bears
		mean := c.mean.Load()
		c.mean.Store(mean + (took-mean)/8)
	}
}

// wait is when something will be given back, as far as the past tells.
func (c *counter) wait(most int64) int64 {
	return max(c.mean.Load()/max(most, 1), leastWait)
}

// leastWait is the shortest time that a refused caller is asked to wait.
const leastWait = int64(1e6) // a millisecond

func (c *counter) idle() bool { return c.used.Load() == 0 }
