package client

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serve/sluice/workers/shm"
)

// nameFrom is the size from which an answer is named in the next batch: below it a copy
// beside the rows of other requests costs less than the gathering of single ones.
const nameFrom = 16 << 10

// Layout is where batches are laid out: the request arena. Where there is one worker
// alone, and it is local, Holds also says yes of large tensors in the memory that it
// answers into, which it can read: a step of an ensemble gets them from the one before
// without a copy. Where an instance turns out to be elsewhere, they are copied when the
// batch is posted.
type Layout struct {
	*shm.Arena
	w *Workers
}

// Holds fits schedule.Memory.
func (l *Layout) Holds(b []byte) bool {
	if l.Arena.Holds(b) {
		return true
	}
	if len(b) < nameFrom || len(l.w.workers) != 1 {
		return false
	}
	return l.w.workers[0].answers.holds(b)
}

// span is a range of addresses: that of the memory which a worker answers into. It only
// compares them: what is said of memory that is gone is put right when a batch is posted.
type span struct{ at atomic.Pointer[[2]uintptr] }

// set begins with the arena of a session.
func (s *span) set(a *shm.Arena) {
	all, err := a.View(0, a.Size())
	if err != nil || len(all) == 0 {
		s.at.Store(nil)
		return
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	s.at.Store(&[2]uintptr{base, base + uintptr(len(all))})
}

func (s *span) holds(b []byte) bool {
	at := s.at.Load()
	if at == nil || len(b) == 0 {
		return false
	}
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return p >= at[0] && p+uintptr(len(b)) <= at[1]
}
