package python

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// cancelEvery is how often the requests of batches in execution are looked at; those of
	// batches that were kept are the worker's to watch.
	cancelEvery = 10 * time.Millisecond
	// cancelRest is after how many looks without a batch in execution the looking rests.
	cancelRest = 20
)

// cancelWatch tells processes of cancelled requests while they execute them. There is one
// goroutine for a backend, which rests while nothing is executed.
type cancelWatch struct {
	resting atomic.Bool
	wake    chan struct{} // one token
	over    chan struct{}
	done    chan struct{}

	mu        sync.Mutex
	instances map[*instance]struct{} // guarded by mu
	seen      []*instance            // the goroutine's
}

// newCancelWatch starts the goroutine; close ends it.
func newCancelWatch() *cancelWatch {
	w := &cancelWatch{wake: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
		instances: map[*instance]struct{}{}}
	w.resting.Store(true)
	go w.run()
	return w
}

func (w *cancelWatch) close() {
	close(w.over)
	<-w.done
}

// look has the goroutine look, if it rests.
func (w *cancelWatch) look() {
	if w.resting.Load() && w.resting.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

func (w *cancelWatch) add(in *instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instances[in] = struct{}{}
}

func (w *cancelWatch) remove(in *instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.instances, in)
}

func (w *cancelWatch) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
		case <-w.over:
			return
		}
		t := time.NewTicker(cancelEvery)
		for idle := 0; ; {
			select {
			case <-t.C:
			case <-w.over:
				t.Stop()
				return
			}
			if idle++; w.lookAll() {
				idle = 0
			}
			if idle < cancelRest {
				continue
			}
			w.resting.Store(true)
			// A batch that began before this was seen, or wakes the goroutine.
			if !w.lookAll() || !w.resting.CompareAndSwap(true, false) {
				break
			}
			idle = 0
		}
		t.Stop()
	}
}

// lookAll looks at all instances; false: none executes.
func (w *cancelWatch) lookAll() bool {
	w.mu.Lock()
	for in := range w.instances {
		w.seen = append(w.seen, in)
	}
	w.mu.Unlock()
	any := false
	for _, in := range w.seen {
		if x := in.current.Load(); x != nil {
			any = true
			x.lookCancelled()
		}
	}
	clear(w.seen)
	w.seen = w.seen[:0]
	return any
}

// lookCancelled tells the process which requests are cancelled, of a batch that was not kept. One
// that is being answered is looked at the next time.
func (x *batch) lookCancelled() {
	if !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	if x.b == nil || x.open != nil {
		return
	}
	for i, q := range x.b.Requests() {
		if r := &x.requests[i]; !r.closed && q.Cancelled() {
			x.run.channel.Cancel(r.key)
		}
	}
}
