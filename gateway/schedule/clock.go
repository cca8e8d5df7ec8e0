package schedule

import (
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// Clock tells the time and wakes schedulers up. Alarm is the exact one; GoClock stands
// on Go's timers, which tests in virtual time need.
type Clock interface {
	// Now is infer.Now or a virtual equivalent: nanoseconds, never 0.
	Now() int64
	// NewTimer makes a timer that is not set. f runs on the clock's own goroutine, one
	// call at a time for each timer, and must return soon.
	NewTimer(f func()) Timer
}

// Timer calls its function once for each Set.
type Timer interface {
	// Set arms the timer for a time of Clock.Now in place of what it was armed for. A
	// time that has passed fires at once. It may fire a little late, never early.
	Set(at int64)
	// Stop disarms it. A call that began already may still be running.
	Stop()
}

// GoClock keeps time with Go's timers: up to a millisecond late, exact in virtual
// time. The zero value works.
type GoClock struct{}

// Now is infer.Now.
func (GoClock) Now() int64 { return infer.Now() }

// NewTimer makes a timer of package time.
func (GoClock) NewTimer(f func()) Timer { return &goTimer{f: f} }

type goTimer struct {
	f func()

	mu sync.Mutex
	t  *time.Timer
}

func (t *goTimer) Set(at int64) {
	d := max(time.Duration(at-infer.Now()), 0)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.t == nil {
		t.t = time.AfterFunc(d, t.f)
		return
	}
	t.t.Reset(d)
}

func (t *goTimer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.t != nil {
		t.t.Stop()
	}
}
