package httpapi

import (
	"net"
	"sync"
	"time"
)

// The calls that an HTTP/2 client may reset on one connection: in a burst, and for good in a
// second. One whose calls run out of time stays far below. They are those of gateway/h2.
const (
	resetBurst = 2000
	resetRate  = 500
)

// resets counts the calls that were reset on a connection, and cuts it off when they are
// too many: each costs us a call, and its client next to nothing.
type resets struct {
	conn net.Conn

	mu   sync.Mutex
	left float64   // guarded by mu
	last time.Time // guarded by mu
}

// count counts one.
func (r *resets) count(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() {
		r.left = min(resetBurst, r.left+resetRate*now.Sub(r.last).Seconds())
	}
	r.last = now
	if r.left--; r.left < 0 {
		_ = r.conn.Close() // its reader notices, and ends what is left
	}
}
