package shm

import (
	"fmt"
	"sync/atomic"
	"time"
)

// A mailbox is one word (number of posts, and a bit for closed), the post, and on its
// own line the word that the instance's thread sleeps on.
const (
	boxWord   = 0
	boxOffset = 8
	boxLength = 16
	boxWaiter = 64

	boxClosed = 1 // bit 0 of the word; the posts count in twos above it
)

// Post puts a batch's descriptor into a mailbox and wakes its instance: n bytes at off
// of the request arena. The gateway calls it, and only after the mailbox's last batch
// was answered, since the post before is overwritten.
func (l *Lane) Post(box int, off, n int64) {
	at := l.box(box)
	atomic.StoreUint64(l.u64(at+boxOffset), uint64(off))
	atomic.StoreUint64(l.u64(at+boxLength), uint64(n))
	atomic.AddUint32(l.u32(at+boxWord), 2)
	waiter{l.u32(at + boxWaiter)}.wake()
}

// CloseMailbox wakes the instance of a mailbox for good: its Take returns ErrClosed
// once the post that may still be in it is taken. Either side may call it.
func (l *Lane) CloseMailbox(box int) {
	at := l.box(box)
	atomic.OrUint32(l.u32(at+boxWord), boxClosed)
	waiter{l.u32(at + boxWaiter)}.rouse()
}

// ResetMailbox opens a mailbox for another instance. The gateway calls it before it
// asks the worker to load, when no instance uses the mailbox.
func (l *Lane) ResetMailbox(box int) {
	atomic.AndUint32(l.u32(l.box(box)+boxWord), ^uint32(boxClosed))
}

func (l *Lane) box(i int) int {
	if i < 0 || i >= l.mailboxes {
		panic(fmt.Sprintf("shm: mailbox %d of %d", i, l.mailboxes))
	}
	return l.boxes + i*boxStride
}

// Mailbox is the worker's end of a mailbox, for one goroutine.
type Mailbox struct {
	lane   *Lane
	index  int
	word   *uint32
	offset *uint64
	length *uint64
	waiter waiter
	posts  uint32 // seen so far
}

// Mailbox opens the worker's end. Posts from before are not seen. The number comes
// from a LoadRequest, so it may be wrong.
func (l *Lane) Mailbox(i int) (*Mailbox, error) {
	if i < 0 || i >= l.mailboxes {
		return nil, fmt.Errorf("shm: mailbox %d of %d", i, l.mailboxes)
	}
	at := l.box(i)
	m := &Mailbox{lane: l, index: i, word: l.u32(at + boxWord), offset: l.u64(at + boxOffset), length: l.u64(at + boxLength),
		waiter: waiter{l.u32(at + boxWaiter)}}
	m.posts = atomic.LoadUint32(m.word) >> 1
	return m, nil
}

// Index is the mailbox's number on the lane.
func (m *Mailbox) Index() int { return m.index }

// Take waits for the next batch: n bytes at off of the request arena. It returns
// ErrClosed when the mailbox is closed and empty, and ErrTimeout after timeout, where
// that is not 0. It blocks its thread in a futex.
func (m *Mailbox) Take(timeout time.Duration) (off, n int64, err error) {
	if atomic.LoadUint32(m.word)>>1 == m.posts && !m.isClosed() {
		if !m.waiter.await(timeout, false, m.ready) {
			return 0, 0, ErrTimeout
		}
	}
	posts := atomic.LoadUint32(m.word) >> 1
	if posts == m.posts {
		return 0, 0, ErrClosed
	}
	m.posts = posts
	return int64(atomic.LoadUint64(m.offset)), int64(atomic.LoadUint64(m.length)), nil
}

func (m *Mailbox) isClosed() bool { return atomic.LoadUint32(m.word)&boxClosed != 0 }

func (m *Mailbox) ready() bool {
	v := atomic.LoadUint32(m.word)
	return v>>1 != m.posts || v&boxClosed != 0
}

// Close makes Take return ErrClosed; any goroutine may call it.
func (m *Mailbox) Close() { m.lane.CloseMailbox(m.index) }
