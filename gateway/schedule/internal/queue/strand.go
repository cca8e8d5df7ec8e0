package queue

import "container/heap"

// Strand is a list of waiting entries for cores that keep several: the sequence batcher
// has one for each sequence. An entry stands in one strand at most. The zero value is
// empty.
type Strand struct{ l list }

// Append puts e behind all others.
func (s *Strand) Append(e *Entry) { s.l.insert(e, s.l.tail, inStrand) }

// Prepend puts e in front of all others.
func (s *Strand) Prepend(e *Entry) { s.l.insert(e, nil, inStrand) }

// Remove takes e, which must stand in s, out.
func (s *Strand) Remove(e *Entry) { s.l.remove(e) }

// First is the entry in front; nil: none. Entry.Next walks on.
func (s *Strand) First() *Entry { return s.l.head }

// Len counts the entries.
func (s *Strand) Len() int { return s.l.n }

// Deadlines are the deadlines of waiting entries, for cores that keep their own. The
// zero value is empty.
type Deadlines struct{ h deadlineHeap }

// Watch adds an entry that may have a deadline. It is called before Forget for each.
func (d *Deadlines) Watch(e *Entry) {
	e.heap = -1
	if e.Deadline != 0 {
		heap.Push(&d.h, e)
	}
}

// Forget takes an entry out, if it is in.
func (d *Deadlines) Forget(e *Entry) {
	if e.heap >= 0 {
		heap.Remove(&d.h, e.heap)
	}
}

// First is the entry whose deadline comes first; nil: none has one.
func (d *Deadlines) First() *Entry {
	if len(d.h) == 0 {
		return nil
	}
	return d.h[0]
}
