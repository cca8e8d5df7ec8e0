//go:build onnxruntime && cgo

package onnxruntime

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/workers/backend"
)

const (
	watchTick   = 10 * time.Millisecond // runs shorter than this are never looked at
	watchLinger = 100                   // ticks without any run until the watch sleeps
)

// watch ends long runs that nobody waits for. Its goroutine ticks while instances run
// and sleeps otherwise, so a short run pays for two uncontended locks only.
type watch struct {
	asleep atomic.Bool
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	mu   sync.Mutex
	runs []*running
}

// running is the part of an instance that the watch sees.
type running struct {
	watch *watch
	call  interface{ Terminate() error }

	mu         sync.Mutex
	requests   []backend.Request // of the run in progress; nil between runs
	epoch      uint64            // counts runs
	seen       uint64            // epoch at the last tick
	terminated bool              // this run was told to end
}

// newWatch starts the goroutine, which ends with close.
func newWatch() *watch {
	w := &watch{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	w.asleep.Store(true)
	go w.loop()
	return w
}

func (w *watch) close() {
	close(w.stop)
	<-w.done
}

func (w *watch) add(r *running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.watch = w
	w.runs = append(w.runs, r)
}

// remove returns once the watch looks at r no more.
func (w *watch) remove(r *running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = slices.DeleteFunc(w.runs, func(o *running) bool { return o == r })
}

func (w *watch) loop() {
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
func (w *watch) tick() bool {
	ticker := time.NewTicker(watchTick)
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
		if idle++; idle < watchLinger {
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
func (w *watch) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	active := false
	for _, r := range w.runs {
		active = r.look() || active
	}
	return active
}

func (r *running) look() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	long := r.epoch == r.seen && r.requests != nil
	active := r.epoch != r.seen || r.requests != nil
	r.seen = r.epoch
	if long && !r.terminated && allCancelled(r.requests) {
		r.terminated = r.call.Terminate() == nil
	}
	return active
}

// begin announces a run of requests.
func (r *running) begin(requests []backend.Request) {
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

// end says whether the run was told to end.
func (r *running) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.terminated
	r.requests, r.terminated = nil, false
	return t
}

func allCancelled(requests []backend.Request) bool {
	for _, q := range requests {
		if !q.Cancelled() {
			return false
		}
	}
	return len(requests) > 0
}
