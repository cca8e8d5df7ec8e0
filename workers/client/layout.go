package client

import "github.com/sluice-serve/sluice/workers/shm"

// nameFrom is the size from which an answer is named in the next batch: below it a copy
// beside the rows of other requests costs less than the gathering of single ones.
const nameFrom = 16 << 10

// Layout is where batches are laid out: the request arena. Holds also says yes of large
// tensors in the memory that a worker of this host answers into, which it and others of the host
// can read: a step of an ensemble gets them from the one before without a copy. Where an
// instance turns out to be elsewhere, they are copied when the batch is posted.
type Layout struct {
	*shm.Arena
	w *Workers
}

// Holds fits schedule.Memory.
func (l *Layout) Holds(b []byte) bool {
	if l.Arena.Holds(b) {
		return true
	}
	if len(b) < nameFrom {
		return false
	}
	o, _ := l.w.answersAt(b)
	return o != nil
}
