// Package tick makes tickers that fire together: each at whole multiples of its interval on the wall clock,
// so that those of one process, and of all processes of a host, wake a core that rests once and not
// each at a moment of its own.
package tick

import "time"

// Ticker is used by one goroutine: it receives from C, and then calls Next. Between the two no further
// tick comes.
type Ticker struct {
	*time.Timer
	every time.Duration
}

// New makes a Ticker whose first tick comes after at least half of the interval, which must be above 0, and at most
// one and a half. Who has it calls Stop.
func New(every time.Duration) *Ticker {
	return &Ticker{Timer: time.NewTimer(until(time.Now(), every)), every: every}
}

// Next sets the next tick, at the next multiple of the interval.
func (t *Ticker) Next() { t.Reset(until(time.Now(), t.every)) }

// until is the time to the next multiple of every that is at least half of every away.
func until(now time.Time, every time.Duration) time.Duration {
	wait := every - time.Duration(now.UnixNano()%int64(every))
	if wait < every/2 {
		wait += every
	}
	return wait
}
