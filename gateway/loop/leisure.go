package loop

import (
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// leisure is what loops that serve the same connections know of one another's time.
//
// A large answer is written cheapest by who brings its result: for another goroutine a
// thread has to be woken, mostly on a core that rests. But half a megabyte takes some 0.1
// ms, for which all that the loop serves waits. So it is done there while connections of
// small calls say nothing, and for half of the time at most.
type leisure struct {
	served atomic.Bool  // a handler was called since it was last looked at
	from   atomic.Int64 // when there is leisure again, on the clock of infer.Now
}

// What is written without waiting: up to little always, up to much in leisure.
const (
	little = 64 << 10
	much   = 1 << 20
)

// Takes says whether who has news of one of the loop's connections may write size bytes to
// it at once, without waiting; else that is a goroutine's. l may be nil. Took is told begin
// when they are written.
func (l *Loop) Takes(size int) (begin int64, ok bool) {
	if size <= little {
		return 0, true
	}
	if l == nil || size > much {
		return 0, false
	}
	now := infer.Now()
	return now, !l.leisure.served.Swap(false) && now >= l.leisure.from.Load()
}

// Took is told what Takes gave when it said yes.
func (l *Loop) Took(begin int64) {
	if begin > 0 {
		end := infer.Now()
		l.leisure.from.Store(end + (end - begin))
	}
}
