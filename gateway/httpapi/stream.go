package httpapi

import (
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// Streamer is how a transport sends an answer piece by piece. Its methods are called one
// after the other, by one goroutine that is not the call's; both may block as long as the
// client takes its time, within the transport's bound for slow ones. After an error
// nothing more is sent.
type Streamer interface {
	// Begin sends the head of an answer whose length is not known.
	Begin(h *Head) error
	// Stream sends a piece of its body at once.
	Stream(b []byte) error
}

// Head is the beginning of a streamed answer.
type Head struct {
	Status      int
	ContentType string
	Fields      []Field
}

// framing says how answers stand in a streamed body.
type framing uint8

const (
	unframed framing = iota // one answer, not streamed
	events                  // server-sent events
	lines                   // JSON documents, one a line
)

const (
	typeEvents = "text/event-stream; charset=utf-8"
	typeLines  = "application/x-ndjson"
)

// maxStreamed is how many bytes of answers may wait for a client before its request is
// ended.
const maxStreamed = 16 << 20

// acceptsStream is the framing that a client of an inference asks for.
func acceptsStream(accept string) framing {
	for rest := accept; rest != ""; {
		var one string
		one, rest, _ = strings.Cut(rest, ",")
		one, _, _ = strings.Cut(one, ";")
		switch strings.ToLower(strings.TrimSpace(one)) {
		case "text/event-stream":
			return events
		case typeLines:
			return lines
		}
	}
	return unframed
}

// flow is a streamed answer on its way out. put never blocks; while something waits a
// goroutine writes it.
type flow struct {
	to     Streamer
	budget *infer.Budget // of what waits
	frame  framing
	fields []Field
	ids    bool          // events are numbered
	beat   time.Duration // of comments that keep the connection alive; 0: none
	broken func(error)   // told when the client can't be reached any more

	mu      sync.Mutex
	status  int // of the head; 0: nothing was put
	count   int
	waiting []byte
	counted int64 // bytes in budget: of waiting, and of what is being written
	spare   []byte
	fault   error
	ended   bool
	sent    int64
	news    chan struct{} // a token
	done    chan struct{} // closed when the goroutine has ended
}

// put adds an answer, a JSON document without line ends. status is the answer's as a
// whole if this is the first. The error is why the client does not have it.
func (f *flow) put(status int, document []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return f.fault
	}
	if n := len(f.waiting); n > 0 && n+len(document) > maxStreamed {
		return infer.Refusef(infer.ResourceExhausted, infer.ReasonSlowClient,
			"the answers are not taken: %d bytes of them wait, the most is %d", n, maxStreamed)
	}
	if err := f.budget.Take(int64(len(document))); err != nil {
		return err
	}
	before := len(f.waiting)
	f.count++
	if f.frame == events {
		if f.ids {
			f.waiting = append(appendCount(append(f.waiting, "id: "...), f.count), '\n')
		}
		f.waiting = append(append(append(f.waiting, "data: "...), document...), "\n\n"...)
	} else {
		f.waiting = append(append(f.waiting, document...), '\n')
	}
	grown := int64(len(f.waiting) - before)
	f.budget.Force(grown - int64(len(document))) // what stands around it
	f.counted += grown
	f.beginLocked(status)
	return nil
}

// begin makes the head leave, though there may be no answer at all.
func (f *flow) begin(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beginLocked(status)
}

func (f *flow) beginLocked(status int) {
	if f.status == 0 {
		f.status = status
		f.news, f.done = make(chan struct{}, 1), make(chan struct{})
		go f.write()
	}
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// begun says that a head was put.
func (f *flow) begun() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status != 0
}

// putError adds an error.
func (f *flow) putError(err error) {
	b := append(json.AppendString([]byte(`{"error":`), err.Error()), '}')
	_ = f.put(Status(infer.CodeOf(err)), b) // who is gone, or takes nothing, does not hear it
}

// close waits until everything that was put has left, or can't. It returns the status,
// the bytes sent, and why not all of it was.
func (f *flow) close() (status int, sent int64, err error) {
	f.mu.Lock()
	f.ended = true
	f.beginLocked(200)
	f.mu.Unlock()
	<-f.done
	return f.status, f.sent, f.fault
}

// write is the goroutine.
func (f *flow) write() {
	defer close(f.done)
	defer f.wrote()
	h := &Head{Status: f.status, ContentType: typeLines, Fields: f.fields}
	if f.frame == events {
		h.ContentType = typeEvents
	}
	err := f.to.Begin(h)
	var tick <-chan time.Time
	if f.beat > 0 && f.frame == events {
		t := time.NewTicker(f.beat)
		defer t.Stop()
		tick = t.C
	}
	idle := false // nothing was sent since the last tick
	for err == nil {
		b, ended := f.take()
		if len(b) > 0 {
			idle = false
		}
		for len(b) > 0 && err == nil {
			n := min(len(b), piece)
			err, b = f.to.Stream(b[:n]), b[n:]
		}
		f.wrote()
		if err != nil || !f.empty() {
			continue
		}
		if ended {
			return
		}
		select {
		case <-f.news:
		case <-tick:
			if idle {
				err = f.to.Stream([]byte(":\n\n"))
			}
			idle = true
		}
	}
	f.mu.Lock()
	f.fault = err
	f.waiting = nil
	f.mu.Unlock()
	f.broken(err)
}

// piece is how much is written at a time: a transport bounds how long each may take.
const piece = 64 << 10

func (f *flow) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting) == 0
}

// wrote gives back what take gave to be written, or, where nothing is written any more, all.
func (f *flow) wrote() {
	f.mu.Lock()
	defer f.mu.Unlock()
	counted := int64(len(f.waiting))
	f.budget.Give(f.counted - counted)
	f.counted = counted
	if cap(f.spare) > keepBuffer {
		f.spare = nil
	}
}

// take gives what waits, which is counted until wrote is called.
func (f *flow) take() (b []byte, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b = f.waiting
	f.waiting, f.spare = f.spare[:0], b
	f.sent += int64(len(b))
	return b, f.ended
}
