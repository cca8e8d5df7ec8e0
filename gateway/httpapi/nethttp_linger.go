package httpapi

import (
	"cmp"
	"net/http"
	"sync"
	"time"
)

// The bounds of lingering on net/http, as those of gateway/h1: how long a client may take until something
// more of a body comes that nobody reads, and until all has come.
// Source: lingering_timeout and lingering_time, nginx's core module.
const (
	lingerIdle = 5 * time.Second
	lingerTime = 30 * time.Second
	// lingerIdle2 is lingerIdle of HTTP/2, where a client that has stopped sending waits for the stream's end.
	lingerIdle2 = 500 * time.Millisecond
)

// lingers says that behind the answer the rest of a body is to be read away: net/http reads 256 KiB of it, and
// then resets the connection under clients that send all before they read; of HTTP/2 it resets the stream, which
// some clients take for a failure. Who waits for 100 Continue sends nothing more.
func (c *httpCall) lingers(r *http.Request) bool {
	return r.ContentLength != 0 && !c.body.ended && !c.body.failed && r.Header.Get("Expect") == ""
}

// openLinger readies the answer for linger; false: the transport can't.
func openLinger(w http.ResponseWriter, r *http.Request) bool {
	if http.NewResponseController(w).EnableFullDuplex() != nil {
		return false
	}
	if r.ProtoMajor == 1 { // to HTTP/2 it would mean all streams
		w.Header().Set("Connection", "close")
	}
	return true
}

// lingerings are the connections of one Server whose clients still send. The zero value has none.
type lingerings struct {
	idle, whole time.Duration // lingerIdle and lingerTime, but in tests

	mu      sync.Mutex
	all     map[*http.ResponseController]struct{} // mu; made with the first
	stopped bool                                  // mu
}

// linger sends what is written of the answer, and reads the rest of the body away.
func (l *lingerings) linger(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if control.Flush() != nil {
		return
	}
	defer l.end(control)
	idle := cmp.Or(l.idle, lingerIdle)
	if r.ProtoMajor == 2 {
		idle = min(idle, lingerIdle2)
	}
	sink := make([]byte, 32<<10)
	for end := time.Now().Add(cmp.Or(l.whole, lingerTime)); l.next(control, end, idle); {
		if _, err := r.Body.Read(sink); err != nil {
			return
		}
	}
}

// next sets the deadline of the next read; false: there is none.
func (l *lingerings) next(control *http.ResponseController, end time.Time, idle time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	_, had := l.all[control]
	switch {
	case l.stopped && had: // what stop has set counts
		return now.Before(end)
	case l.stopped:
		end = now.Add(lingerRest)
	}
	if l.all == nil {
		l.all = map[*http.ResponseController]struct{}{}
	}
	l.all[control] = struct{}{}
	at := now.Add(idle)
	if end.Before(at) {
		at = end
	}
	return now.Before(end) && control.SetReadDeadline(at) == nil
}

func (l *lingerings) end(control *http.ResponseController) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, control)
}

// lingerRest is how long a connection may linger when the server stops.
const lingerRest = 500 * time.Millisecond

// stop ends all soon: the server stops.
func (l *lingerings) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for control := range l.all {
		_ = control.SetReadDeadline(time.Now().Add(lingerRest)) // one that is broken ends anyway
	}
}
