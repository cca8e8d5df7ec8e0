package shm

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Offsets in an entry of the ring of answers.
const (
	ansCall   = 0
	ansOffset = 8
	ansLength = 16
	ansToken  = 24
)

// Answer announces an answer to a call of a model.
type Answer struct {
	Call   uint64 // the worker's ID of the call
	Offset int64  // of the answer's descriptor (wire.Answer) in the request arena
	Length int64  // of the descriptor in bytes; negative: the gateway had no memory for it, and the call has failed
	Token  uint64 // given back by a Completion of the kind AnswerTaken when nothing reads the answer any more
}

// Answer puts an answer into the ring and wakes the worker. The gateway calls it, from any
// goroutine; it does not block. False: the ring is full.
func (l *Lane) Answer(a Answer) bool {
	l.answerMu.Lock()
	defer l.answerMu.Unlock()
	if l.answered-atomic.LoadUint64(l.ansTail) > l.ansMask {
		return false
	}
	at := l.answers + int(l.answered&l.ansMask)*answerSize
	atomic.StoreUint64(l.u64(at+ansCall), a.Call)
	atomic.StoreUint64(l.u64(at+ansOffset), uint64(a.Offset))
	atomic.StoreUint64(l.u64(at+ansLength), uint64(a.Length))
	atomic.StoreUint64(l.u64(at+ansToken), a.Token)
	l.answered++
	atomic.StoreUint64(l.ansHead, l.answered)
	l.ansWaiter.wake()
	return true
}

// Answers copies the answers that are there, at most len(dst). It does not wait. One goroutine
// of the worker at a time calls it, or WaitAnswer.
func (l *Lane) Answers(dst []Answer) (int, error) {
	ready := atomic.LoadUint64(l.ansHead) - l.answered
	if ready > l.ansMask+1 {
		return 0, fmt.Errorf("%w: %d answers in a ring of %d", ErrCorrupt, ready, l.ansMask+1)
	}
	n := min(int(ready), len(dst))
	for i := range dst[:n] {
		at := l.answers + int(l.answered&l.ansMask)*answerSize
		dst[i] = Answer{
			Call:   atomic.LoadUint64(l.u64(at + ansCall)),
			Offset: int64(atomic.LoadUint64(l.u64(at + ansOffset))),
			Length: int64(atomic.LoadUint64(l.u64(at + ansLength))),
			Token:  atomic.LoadUint64(l.u64(at + ansToken)),
		}
		l.answered++
	}
	if n > 0 {
		atomic.StoreUint64(l.ansTail, l.answered)
	}
	return n, nil
}

// WaitAnswer sleeps until there is an answer, or enough says that waiting makes no sense any
// more, or the lane is shut, which is ErrClosed. It blocks its thread in a futex; StirAnswers
// makes it ask enough again.
func (l *Lane) WaitAnswer(enough func() bool) error {
	l.ansWaiter.await(time.Duration(0), false, func() bool {
		return atomic.LoadUint64(l.ansHead) != l.answered || l.isShut() || enough()
	})
	if atomic.LoadUint64(l.ansHead) == l.answered && l.isShut() {
		return ErrClosed
	}
	return nil
}

// StirAnswers wakes who sleeps in WaitAnswer; any goroutine may call it.
func (l *Lane) StirAnswers() { l.ansWaiter.wake() }
