package sequence

import (
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// key tells living sequences apart. What the model is told is the ID alone.
type key struct {
	scope string // of the callers who share IDs; "": of all whose is not known
	id    infer.Correlation
}

// sequence is one sequence from its START to the end of its last request.
type sequence struct {
	key key
	// line are its waiting requests in order. With the oldest strategy the first of them
	// stands among its instance's candidates instead, and is head.
	line queue.Strand
	head *queue.Entry
	busy *queue.Entry // in a batch; nil: none
	// instance and row are its slot; -1: it stands in the backlog, or is over.
	instance, row int
	// ended says that its id is free again: END came, or it was ended.
	ended   bool
	fate    error // what its waiting requests hear that are left; nil: it lives
	touched bool  // is in Core.touched
	since   int64 // when it became idle, or began to wait in the backlog

	sharer         *sharer               // whose slots it takes
	number         uint64                // in order of arrival
	before, behind *sequence             // of its sharer, while it waits for a slot
	hold           schedule.SequenceHold // nil: no limit counts it

	placed infer.PlacedSequence // by a mesh's picker; zero: by none
	stream uint64               // that began it; 0: none, or no picker

	in         *list // the backlog or the idle ones; nil: neither
	prev, next *sequence

	keyed  *queue.Entry // the request whose Key has the shapes of the states,
	keyLen int          // and how long it was before
	values *values      // its implicit state; nil: none was kept yet
}

// waiting says that a request of it waits.
func (s *sequence) waiting() bool { return s.head != nil || s.line.Len() > 0 }

// list is sequences in order.
type list struct {
	head, tail *sequence
	n          int
}

func (l *list) add(s *sequence) {
	s.in, s.prev, s.next = l, l.tail, nil
	if l.tail != nil {
		l.tail.next = s
	} else {
		l.head = s
	}
	l.tail = s
	l.n++
}

// out takes s out of the list that it is in, if any.
func (s *sequence) out() {
	l := s.in
	if l == nil {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.tail = s.prev
	}
	l.n--
	s.in, s.prev, s.next = nil, nil, nil
}
