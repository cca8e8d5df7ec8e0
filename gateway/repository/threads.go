package repository

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// ownLoads is the caller (infer.CallerOf) of the loads that the server begins: at its start, and in
// polls.
const ownLoads = ""

// threads decides which loads have the load threads (--model-load-thread-count). Callers take
// turns; the loads of one caller are in the order in which they came. A caller who has a thread
// gets the last free one only where nobody else can want it, so that no caller alone keeps all
// threads from those who have none. That holds for load calls: while the server loads for
// itself, at its start and in polls, there are none.
//
// It is a plain state machine: what it returns are the loads that have a thread from now on.
type threads struct {
	free    int
	spare   bool // there is more than one thread
	held    map[string]int
	waiting map[string][]uint64 // by caller, the oldest first
	order   []string            // callers that wait; the first one is next
}

func newThreads(n int) *threads {
	return &threads{free: n, spare: n > 1, held: map[string]int{}, waiting: map[string][]uint64{}}
}

// add queues a load of a caller.
func (t *threads) add(caller string, load uint64) []uint64 {
	if len(t.waiting[caller]) == 0 {
		t.order = append(t.order, caller)
	}
	t.waiting[caller] = append(t.waiting[caller], load)
	return t.grant()
}

// leave takes a load out of the queue; false: it is not there.
func (t *threads) leave(caller string, load uint64) bool {
	at := slices.Index(t.waiting[caller], load)
	if at < 0 {
		return false
	}
	t.take(caller, at)
	return true
}

// give ends the use of a thread.
func (t *threads) give(caller string) []uint64 {
	if t.held[caller]--; t.held[caller] == 0 {
		delete(t.held, caller)
	}
	t.free++
	return t.grant()
}

// grant gives out the threads that are free.
func (t *threads) grant() (granted []uint64) {
	for i := 0; i < len(t.order) && t.free > 0; {
		caller := t.order[i]
		if t.spare && t.free == 1 && caller != ownLoads && t.held[caller] > 0 {
			i++
			continue
		}
		granted = append(granted, t.waiting[caller][0])
		t.take(caller, 0)
		t.free--
		t.held[caller]++
		if at := slices.Index(t.order, caller); at >= 0 { // it waits with more: behind the others
			t.order = append(slices.Delete(t.order, at, at+1), caller)
		}
		i = 0
	}
	return granted
}

// take takes a load out of the queue, and its caller where that was the only one.
func (t *threads) take(caller string, at int) {
	t.waiting[caller] = slices.Delete(t.waiting[caller], at, at+1)
	if len(t.waiting[caller]) == 0 {
		delete(t.waiting, caller)
		t.order = slices.DeleteFunc(t.order, func(c string) bool { return c == caller })
	}
}

// loadThreads are the load threads as loads wait for them.
type loadThreads struct {
	mu    sync.Mutex
	state *threads                 // mu
	next  uint64                   // mu; names loads
	wait  map[uint64]chan struct{} // mu; closed when the load has its thread
}

func newLoadThreads(n int) *loadThreads {
	return &loadThreads{state: newThreads(n), wait: map[uint64]chan struct{}{}}
}

// take waits for a thread until ctx ends; give gives it back, once, however often it is called.
func (l *loadThreads) take(ctx context.Context) (give func(), err error) {
	caller, ready := infer.CallerOf(ctx), make(chan struct{})
	l.mu.Lock()
	l.next++
	load := l.next
	l.wait[load] = ready
	l.wakeLocked(l.state.add(caller, load))
	l.mu.Unlock()
	give = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakeLocked(l.state.give(caller))
	})
	select {
	case <-ready:
		return give, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	left := l.state.leave(caller, load)
	delete(l.wait, load)
	l.mu.Unlock()
	if !left { // it came at the same moment
		give()
	}
	return nil, stopped(ctx)
}

func (l *loadThreads) wakeLocked(granted []uint64) {
	for _, load := range granted {
		close(l.wait[load])
		delete(l.wait, load)
	}
}

// stopped is the error of a load whose context ended: why it did, where a load was ended for a
// reason of its own.
func stopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	var known *infer.Error
	if errors.As(cause, &known) {
		return cause
	}
	return infer.Errorf(infer.Cancelled, "loading was stopped: %w", cause)
}
