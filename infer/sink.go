package infer

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
	all  []Flusher
}

// Add adds f, if it is not nil.
func (s *Flushers) Add(f Flusher) {
	if f == nil {
		return
	}
	for _, other := range s.all {
		if other == f {
			return
		}
	}
	if s.all == nil {
		s.all = s.room[:0]
	}
	s.all = append(s.all, f)
}

// Flush flushes them all and empties the set.
func (s *Flushers) Flush() {
	for i, f := range s.all {
		f.Flush()
		s.all[i] = nil
	}
	s.all = s.all[:0]
}

// Flush flushes f, if it is not nil.
func Flush(f Flusher) {
	if f != nil {
		f.Flush()
	}
}
