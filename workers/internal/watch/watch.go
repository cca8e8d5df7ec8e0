// Package watch ends long runs of native libraries that nobody waits for any more.
package watch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/workers/backend"
)

const (
	tickTime = 10 * time.Millisecond // runs shorter than this are never looked at
	linger   = 100                   // ticks without any run until the watch sleeps
)

// Watch looks at runs. Its goroutine ticks while instances run
// and sleeps otherwise, so a short run pays for two uncontended locks only.
type Watch struct {
	asleep atomic.Bool
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	mu   sync.Mutex
	runs []*Run
}

// Run is what the watch sees of an instance. Begin and End are its goroutine's, one after the other.
type Run struct {
	watch *Watch
	// Call is told to end its run, by the watch's goroutine.
	Call interface{ Terminate() error }

	mu         sync.Mutex
	requests   []backend.Request // of the run in progress; nil between runs
	epoch      uint64            // counts runs
	seen       uint64            // epoch at the last tick
	terminated bool              // this run was told to end
}

// New starts the goroutine, which ends with Close.
func New() *Watch {
	w := &Watch{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	w.asleep.Store(true)
	go w.loop()
	return w
}

// Close ends the goroutine. No Run is left.
func (w *Watch) Close() {
	close(w.stop)
	<-w.done
}

// Add has the watch look at r, until Remove.
func (w *Watch) Add(r *Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.watch = w
	w.runs = append(w.runs, r)
}

// Remove returns once the watch looks at r no more.
func (w *Watch) Remove(r *Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = slices.DeleteFunc(w.runs, func(o *Run) bool { return o == r })
}

func (w *Watch) loop() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			if !w.tick() {
				return
			}
		case <-w.stop:
			return
		}
	}
}

// tick looks at all runs until none has happened for a while, and says false at stop.
func (w *Watch) tick() bool {
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for idle := 0; ; {
		select {
		case <-ticker.C:
		case <-w.stop:
			return false
		}
		if w.look() {
			idle = 0
			continue
		}
		if idle++; idle < linger {
			continue
		}
		w.asleep.Store(true)
		// A run may have begun before it could see that the watch sleeps.
		if !w.look() || !w.asleep.CompareAndSwap(true, false) {
			return true
		}
		idle = 0
	}
}

// look says whether anything runs or has run since the last look.
func (w *Watch) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	active := false
	for _, r := range w.runs {
		active = r.look() || active
	}
	return active
}

func (r *Run) look() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	long := r.epoch == r.seen && r.requests != nil
	active := r.epoch != r.seen || r.requests != nil
	r.seen = r.epoch
	if long && !r.terminated && Cancelled(r.requests) {
		r.terminated = r.Call.Terminate() == nil
	}
	return active
}

// Begin announces a run of requests.
func (r *Run) Begin(requests []backend.Request) {
	r.mu.Lock()
	r.requests = requests
	r.epoch++
	r.mu.Unlock()
	if r.watch.asleep.Load() && r.watch.asleep.CompareAndSwap(true, false) {
		select {
		case r.watch.wake <- struct{}{}:
		default:
		}
	}
}

// End says whether the run was told to end.
func (r *Run) End() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.terminated
	r.requests, r.terminated = nil, false
	return t
}

// Cancelled says that nobody waits for any of the requests.
func Cancelled(requests []backend.Request) bool {
	for _, q := range requests {
		if !q.Cancelled() {
			return false
		}
	}
	return len(requests) > 0
}

// Terminated says whether the run was told to end.
func (r *Run) Terminated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.terminated
}
