package loop

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// Burst is the infer.Gatherer of a reader: what arrived together is executed together, so a
// batch is formed when the reader finds nothing more to read, not for the first request that
// it has read. The zero value is closed, and gathers nothing.
//
// The reader opens it whenever something has come, and must close it before it waits for
// anything. Others may add to it.
type Burst struct {
	mu    sync.Mutex
	open  bool
	since int64 // when the first of due came
	adds  int   // since then
	n     int   // in due
	due   [4]infer.Dispatcher

	woke atomic.Bool
}

// How much a burst holds back: then the next one is refused, and leaves with all the others.
const (
	burstMost = 64
	burstTime = 200_000 // ns
)

// Open begins a burst, or goes on with one: one that has lasted long enough ends before.
func (b *Burst) Open() {
	b.mu.Lock()
	late := b.n > 0 && infer.Now()-b.since >= burstTime
	b.open = true
	b.mu.Unlock()
	if late {
		b.dispatch(true)
	}
}

var _ infer.Gatherer = (*Burst)(nil)

// Add is infer.Gatherer's. It is false where there is no burst (also where b is nil), or it
// has lasted long enough.
func (b *Burst) Add(d infer.Dispatcher, now int64) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return false
	}
	if b.n == 0 {
		b.since, b.adds = now, 0
	}
	if b.adds++; b.adds >= burstMost || now-b.since >= burstTime {
		return false
	}
	for _, have := range b.due[:b.n] {
		if have == d {
			return true
		}
	}
	if b.n == len(b.due) {
		return false
	}
	b.due[b.n] = d
	b.n++
	return true
}

// Woke says that the reader's goroutine has made another one ready, or may have: that one
// waits for the reader's processor, so the reader yields before it waits in the kernel.
// b may be nil.
func (b *Burst) Woke() {
	if b != nil {
		b.woke.Store(true)
	}
}

// Yields tells once of all calls of Woke.
func (b *Burst) Yields() bool { return b.woke.Load() && b.woke.Swap(false) }

// Holds says that somebody waits for the burst's end.
func (b *Burst) Holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n > 0
}

// Close ends the burst, if there is one.
func (b *Burst) Close() { b.dispatch(false) }

func (b *Burst) dispatch(open bool) {
	b.mu.Lock()
	due, n := b.due, b.n
	clear(b.due[:n])
	b.open, b.n = open, 0
	b.mu.Unlock()
	for _, d := range due[:n] {
		d.Dispatch()
	}
}
