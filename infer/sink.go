package infer

import "slices"

// Sink takes what becomes of a request that was started and that no goroutine waits
// for. Its methods are called one after the other, by whoever has the news: the
// goroutine that started the request, the one that reads a worker's results, or one that
// ends calls. None may block.
type Sink interface {
	// Large says that Send would keep its caller for long, so that it is better called on a
	// goroutine of its own. It is asked before each Send.
	Large(resp *Response) bool
	// Send is SendFunc's.
	Send(resp *Response) error
	// Done ends the request; it is called once, and nothing after it. err is what Do or
	// Infer would have returned. Who calls it calls Flush of what it returns, if that is
	// not nil, once it has told others that it has news for: answers that were made
	// together leave together.
	Done(err error) Flusher
}

// Flusher is a connection with answers that are ready to be written. It can be compared.
type Flusher interface {
	// Flush writes what there is without blocking.
	Flush()
}

// Flushers is a set of Flushers. The zero value is empty.
type Flushers struct {
	room [8]Flusher
	n    int       // in room
	more []Flusher // beyond it
}

// Add adds f, if it is not nil.
func (s *Flushers) Add(f Flusher) {
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

// Flush flushes them all and empties the set.
func (s *Flushers) Flush() {
	for i := range s.room[:s.n] {
		s.room[i].Flush()
	}
	for _, f := range s.more {
		f.Flush()
	}
	*s = Flushers{}
}

// Flush flushes f, if it is not nil.
func Flush(f Flusher) {
	if f != nil {
		f.Flush()
	}
}
