package listen

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Accepted accepts a transport's connections and keeps them: it runs each on a goroutine
// and tells when the last one has ended. C is the transport's record of a connection. One
// may rest without a goroutine in between.
type Accepted[C comparable] struct {
	log *slog.Logger

	running sync.WaitGroup

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[C]struct{}
	stopping  bool
	none      chan struct{} // closed when stopping and no connection is left
}

// NewAccepted makes one without connections.
func NewAccepted[C comparable](log *slog.Logger) *Accepted[C] {
	return &Accepted[C]{log: log, listeners: map[net.Listener]struct{}{}, conns: map[C]struct{}{}, none: make(chan struct{})}
}

// Serve accepts from l until Stop, which makes it return nil, or until l fails. It
// closes l. open makes the record of a connection, and serve runs it: to its end, or to
// where it rests. Then Resume goes on with it.
func (a *Accepted[C]) Serve(l net.Listener, open func(net.Conn) C, serve func(C) (rests bool)) error {
	defer l.Close()
	if !a.enlist(l) {
		return nil
	}
	var told time.Time // when the log was, once a second at most
	failed := 0        // since
	for {
		nc, err := l.Accept()
		if err == nil {
			a.start(nc, open, serve)
			continue
		}
		var transient interface{ Temporary() bool }
		switch {
		case a.stopped():
			return nil
		case errors.As(err, &transient) && transient.Temporary():
			// out of descriptors, as a rule: others will be given back
			failed++
			if now := time.Now(); now.Sub(told) >= time.Second {
				a.log.Warn("accept failed", "address", l.Addr().String(), "error", err, "times", failed)
				told, failed = now, 0
			}
			pause := time.NewTimer(acceptPause)
			<-pause.C
		default:
			return err
		}
	}
}

// acceptPause is the wait after an accept that failed for want of descriptors.
const acceptPause = 50 * time.Millisecond

func (a *Accepted[C]) enlist(l net.Listener) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopping {
		a.listeners[l] = struct{}{}
	}
	return !a.stopping
}

func (a *Accepted[C]) stopped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopping
}

func (a *Accepted[C]) start(nc net.Conn, open func(net.Conn) C, serve func(C) bool) {
	a.mu.Lock()
	if a.stopping {
		a.mu.Unlock()
		_ = nc.Close() // nothing was said on it
		return
	}
	c := open(nc)
	a.conns[c] = struct{}{}
	a.running.Add(1)
	a.mu.Unlock()
	a.Resume(c, serve)
}

// Resume goes on with a connection whose serve said that it rests, on a goroutine.
func (a *Accepted[C]) Resume(c C, serve func(C) (rests bool)) {
	go func() {
		if serve(c) {
			return
		}
		defer a.running.Done()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.conns, c)
		a.tellLocked()
	}()
}

func (a *Accepted[C]) tellLocked() {
	if a.stopping && len(a.conns) == 0 {
		select {
		case <-a.none:
		default:
			close(a.none)
		}
	}
}

// Stop closes the listeners, accepts nothing any more, and gives the connections that
// there are. It may be called again.
func (a *Accepted[C]) Stop() []C {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = true
	for l := range a.listeners {
		_ = l.Close() // Accept reports it
	}
	a.tellLocked()
	return a.allLocked()
}

// All are the connections that there are.
func (a *Accepted[C]) All() []C {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.allLocked()
}

func (a *Accepted[C]) allLocked() []C {
	all := make([]C, 0, len(a.conns))
	for c := range a.conns {
		all = append(all, c)
	}
	return all
}

// None is closed once Stop was called and no connection is left.
func (a *Accepted[C]) None() <-chan struct{} { return a.none }

// Wait waits for the goroutines of all connections. It is called after Stop.
func (a *Accepted[C]) Wait() { a.running.Wait() }
