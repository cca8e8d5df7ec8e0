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
	// Done ends the request; it is called once, and nothing after it. err is why the
	// request failed; nil: it did not. Who calls it calls Flush of what it returns, if that is
	// not nil, once it has told others that it has news for: answers that were made
	// together leave together.
	Done(err error) Flusher
}

// Flusher is a connection with answers that are ready to be written. It can be compared.
type Flusher interface {
	// Flush writes what there is without blocking.
	Flush()
}

// Flush flushes f, if it is not nil.
func Flush(f Flusher) {
	if f != nil {
		f.Flush()
	}
}

// Gatherer holds back what schedulers would execute at once, until everything that came
// together has been read. It is safe for concurrent use.
type Gatherer interface {
	// Add says that d has got something to do at a time, on the clock of Now, and is told
	// when all is read. False: it has to dispatch at once.
	Add(d Dispatcher, now int64) bool
	// Woke says that the reader's goroutine has made another one ready, or may have: that
	// one waits for the reader's processor, so the reader yields before it waits in the
	// kernel.
	Woke()
}

// Dispatcher has requests that a Gatherer holds back. It can be compared.
type Dispatcher interface {
	// Dispatch executes what can be executed. It does not wait.
	Dispatch()
}
