package drive

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// flushers is a set of infer.Flusher: connections with answers that were made together. The zero value is empty.
type flushers struct {
	room [8]infer.Flusher
	n    int             // in room
	more []infer.Flusher // beyond it
}

// add adds f, if it is not nil.
func (s *flushers) add(f infer.Flusher) {
	if f == nil {
		return
	}
	for i := range s.room[:s.n] {
		if s.room[i] == f {
			return
		}
	}
	if s.n < len(s.room) {
		s.room[s.n] = f
		s.n++
		return
	}
	if !slices.Contains(s.more, f) {
		s.more = append(s.more, f)
	}
}

// flush flushes them all, in the order in which they were added, and empties the set. The panic
// of one goes on to the caller when all the others have been flushed.
func (s *flushers) flush() {
	if s.n > 0 {
		s.from(0)
		*s = flushers{}
	}
}

// from flushes those from i on.
func (s *flushers) from(i int) {
	defer func() {
		if i < s.n+len(s.more) { // one has panicked, and it was not the last
			s.from(i)
		}
	}()
	for i < s.n+len(s.more) {
		f := s.at(i)
		i++
		f.Flush()
	}
}

func (s *flushers) at(i int) infer.Flusher {
	if i < s.n {
		return s.room[i]
	}
	return s.more[i-s.n]
}
