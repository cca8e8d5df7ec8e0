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

// Flush flushes them all, in the order in which they were added, and empties the set. The panic
// of one goes on to the caller when all the others have been flushed.
func (s *Flushers) Flush() {
	if s.n > 0 {
		s.from(0)
		*s = Flushers{}
	}
}

// from flushes those from i on.
func (s *Flushers) from(i int) {
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

func (s *Flushers) at(i int) Flusher {
	if i < s.n {
		return s.room[i]
	}
	return s.more[i-s.n]
}

// Flush flushes f, if it is not nil.
func Flush(f Flusher) {
	if f != nil {
		f.Flush()
	}
}
