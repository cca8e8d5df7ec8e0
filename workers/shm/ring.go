package shm

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Offsets in an entry of the completion ring.
const (
	entBatch    = 0
	entMailbox  = 8
	entNoMemory = 12
	entOffset   = 16
	entLength   = 24
	entToken    = 32
	entKind     = 40
)

// Complete announces a result, or what c.Kind says, to the gateway. The worker calls it, from
// any number of goroutines; it waits while the ring is full. ErrClosed when the lane is shut.
func (l *Lane) Complete(c Completion) error {
	if err := l.CompleteQuietly(c); err != nil {
		return err
	}
	l.ring()
	return nil
}

// CompleteQuietly is Complete for what the gateway need not know before the next Complete.
func (l *Lane) CompleteQuietly(c Completion) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := func() bool { return l.head-atomic.LoadUint64(l.compTail) > l.compMask }
	for full() {
		if l.isShut() {
			return ErrClosed
		}
		l.ring() // it may be full of what nobody was told of
		l.fullWaiter.await(0, false, func() bool { return !full() || l.isShut() })
	}
	at := l.completions + int(l.head&l.compMask)*entrySize
	atomic.StoreUint64(l.u64(at+entBatch), c.Batch)
	atomic.StoreUint32(l.u32(at+entMailbox), c.Mailbox)
	atomic.StoreUint32(l.u32(at+entNoMemory), noMemory(c.NoMemory))
	atomic.StoreUint64(l.u64(at+entOffset), uint64(c.Offset))
	atomic.StoreUint64(l.u64(at+entLength), uint64(c.Length))
	atomic.StoreUint64(l.u64(at+entToken), c.Token)
	atomic.StoreUint32(l.u32(at+entKind), uint32(c.Kind))
	l.head++
	atomic.StoreUint64(l.compHead, l.head)
	return nil
}

// Completions waits until there is a result and copies what there is, at most len(dst).
// One goroutine of the gateway calls it. It returns ErrTimeout after timeout, where
// that is not 0, ErrClosed when the lane is shut, and ErrCorrupt when the worker broke
// the ring, after which it must not be called again.
func (l *Lane) Completions(dst []Completion, timeout time.Duration) (int, error) {
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
	}
	head := atomic.LoadUint64(l.compHead)
	for ; head == l.tail; head = atomic.LoadUint64(l.compHead) {
		if l.isShut() {
			return 0, ErrClosed
		}
		if err := l.listen(end); err != nil {
			return 0, err
		}
	}
	return l.take(dst, head)
}

// Poll is Completions without waiting: 0 where there is no result.
func (l *Lane) Poll(dst []Completion) (int, error) {
	head := atomic.LoadUint64(l.compHead)
	switch {
	case head != l.tail:
		return l.take(dst, head)
	case l.isShut():
		return 0, ErrClosed
	}
	l.compWaiter.disarm() // who polls is awake
	return 0, nil
}

// take copies results, of which those before head are there.
func (l *Lane) take(dst []Completion, head uint64) (int, error) {
	l.compWaiter.disarm()
	if head-l.tail > l.compMask+1 {
		return 0, fmt.Errorf("%w: %d results in a ring of %d", ErrCorrupt, head-l.tail, l.compMask+1)
	}
	n := min(int(head-l.tail), len(dst))
	for i := range dst[:n] {
		at := l.completions + int(l.tail&l.compMask)*entrySize
		dst[i] = Completion{
			Batch:    atomic.LoadUint64(l.u64(at + entBatch)),
			Mailbox:  atomic.LoadUint32(l.u32(at + entMailbox)),
			NoMemory: atomic.LoadUint32(l.u32(at+entNoMemory)) != 0,
			Offset:   int64(atomic.LoadUint64(l.u64(at + entOffset))),
			Length:   int64(atomic.LoadUint64(l.u64(at + entLength))),
			Token:    atomic.LoadUint64(l.u64(at + entToken)),
			Kind:     CompletionKind(atomic.LoadUint32(l.u32(at + entKind))),
		}
		l.tail++
		if dst[i].Mailbox >= uint32(l.mailboxes) {
			return 0, fmt.Errorf("%w: a result of mailbox %d, there are %d", ErrCorrupt, dst[i].Mailbox, l.mailboxes)
		}
	}
	atomic.StoreUint64(l.compTail, l.tail)
	l.fullWaiter.wake()
	return n, nil
}

// Release gives a completion's Token back to the worker, when nothing reads the result
// any more. The gateway calls it, from any goroutine; it never blocks: what finds the
// ring full waits in this process for the next Release.
func (l *Lane) Release(token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.overflow) > 0 && l.pushRelease(l.overflow[0]) {
		l.overflow = l.overflow[1:]
	}
	if len(l.overflow) > 0 || !l.pushRelease(token) {
		l.overflow = append(l.overflow, token)
	}
	l.relWaiter.wake()
}

func (l *Lane) pushRelease(token uint64) bool {
	if l.head-atomic.LoadUint64(l.relTail) > l.relMask {
		return false
	}
	atomic.StoreUint64(l.u64(l.releases+int(l.head&l.relMask)*8), token)
	l.head++
	atomic.StoreUint64(l.relHead, l.head)
	return true
}

// Released copies the tokens that came back, at most len(dst), and does not wait. The
// worker calls it, from any goroutine, when it allocates or ends a batch. Each token
// frees everything that the worker hung on it: the descriptor and its tensors.
func (l *Lane) Released(dst []uint64) int {
	l.drainMu.Lock()
	defer l.drainMu.Unlock()
	n := min(l.pendingLocked(), len(dst))
	for i := range dst[:n] {
		dst[i] = atomic.LoadUint64(l.u64(l.releases + int(l.tail&l.relMask)*8))
		l.tail++
	}
	if n > 0 {
		atomic.StoreUint64(l.relTail, l.tail)
	}
	return n
}

// pendingLocked is how many tokens came back that Released has not returned. A gateway
// that writes nonsense, which others may share the worker with, has given none back.
func (l *Lane) pendingLocked() int {
	n := atomic.LoadUint64(l.relHead) - l.tail
	if n > l.relMask+1 {
		return 0
	}
	return int(n)
}

// WaitReleased sleeps until a token came back that Released has not returned yet, or
// timeout has passed, or the lane is shut; false means that there is none. A worker
// whose response arena is full may call it, from any goroutine.
func (l *Lane) WaitReleased(timeout time.Duration) bool {
	ready := func() bool {
		l.drainMu.Lock()
		defer l.drainMu.Unlock()
		return l.pendingLocked() > 0
	}
	l.relWaiter.await(timeout, true, func() bool { return ready() || l.isShut() })
	return ready()
}

// noMemory is a flag of an entry.
func noMemory(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}
