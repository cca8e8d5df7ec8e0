package client

import "time"

// backoff is how long to wait before the next start: not at all, then base, doubled
// each time up to most.
type backoff struct {
	base, most time.Duration
	delay      time.Duration
	tried      bool
}

// served begins anew after a process that served for at least the given time, for longer than its start
// had taken, and for longer than the pause before that: so starts and pauses take at most half of
// the time, and a process that ends now and then is started again at once.
func (b *backoff) served(start, served, healthy time.Duration) {
	if served >= max(start, b.delay, healthy) {
		b.tried, b.delay = false, 0
	}
}

func (b *backoff) next() time.Duration {
	if !b.tried {
		b.tried = true
		return 0
	}
	b.delay = min(max(2*b.delay, b.base), b.most)
	return b.delay
}
