// Package lifetime is the context of one call on a transport of our own: what package
// context makes of three allocations and a lock each, for the one case that a call
// needs. It ends when its owner says so or its time is up.
//
// A Context is embedded in the transport's record of a call. It has no goroutine of its
// own; functions that wait for its end get one each, and a Watcher needs none.
package lifetime

import (
	"context"
	"sync"
	"time"
)

// Context is a context.Context without values that its owner ends. The zero value is a
// call without a deadline. It must not be copied.
type Context struct {
	mu       sync.Mutex
	done     chan struct{} // made when asked for
	err      error
	after    map[*function]struct{}
	watcher  Watcher     // nil: none
	timer    *time.Timer // made for the first deadline
	timed    bool        // it runs
	late     bool        // it could not be stopped
	deadline time.Time
}

// Watchable is a context that tells of its end without a goroutine: a Context, or what embeds one.
type Watchable interface {
	context.Context
	// Watch makes w hear of the end, in place of a watcher that there was. False: the
	// context has ended, and w hears nothing.
	Watch(w Watcher) bool
	// Unwatch takes w back. False: it does not watch, or has heard or is about to hear of
	// the end.
	Unwatch(w Watcher) bool
}

var _ Watchable = (*Context)(nil)

type function struct{ f func() }

// Watcher hears of a context's end.
type Watcher interface {
	// Ended is called once, by the goroutine that ends the context and without a lock. It
	// must not block.
	Ended()
}

// SetTimeout gives the context a deadline. It is called once, before the context is
// given away.
func (c *Context) SetTimeout(d time.Duration) {
	c.mu.Lock() // the time may be up, or the owner may end it, at once
	defer c.mu.Unlock()
	c.deadline = time.Now().Add(d)
	switch {
	case c.err != nil:
		return
	case c.timer == nil:
		c.timer = time.AfterFunc(d, func() { c.End(context.DeadlineExceeded) })
	default:
		c.timer.Reset(d)
	}
	c.timed = true
}

// Value is context.Context's: there is none.
func (c *Context) Value(any) any { return nil }

// Deadline is context.Context's.
func (c *Context) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done is context.Context's.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err is context.Context's.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc runs f on a goroutine of its own when the context ends, as
// context.AfterFunc does; package context looks for it, so that contexts made of this
// one need no goroutine to wait for it.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	a := &function{f}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	if c.after == nil {
		c.after = map[*function]struct{}{}
	}
	c.after[a] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.after[a]
		delete(c.after, a)
		return waiting
	}
}

// Watch is Watchable's.
func (c *Context) Watch(w Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.watcher = w
	return true
}

// Unwatch is Watchable's.
func (c *Context) Unwatch(w Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watcher != w {
		return false
	}
	c.watcher = nil
	return true
}

// End ends the context with Canceled or DeadlineExceeded; the first one counts.
func (c *Context) End(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	after, watcher := c.after, c.watcher
	c.after, c.watcher = nil, nil
	if c.timed {
		c.timed, c.late = false, !c.timer.Stop()
	}
	c.mu.Unlock()
	if watcher != nil {
		watcher.Ended()
	}
	if len(after) > 0 {
		for a := range after {
			go a.f()
		}
	}
}

// Renew makes a context that has ended another one, which has not. Its owner must know
// that nobody looks at it any more, so it needs no lock. False: it has not ended, or its timer
// went off, which may end it at any moment.
func (c *Context) Renew() bool {
	if c.err == nil || c.late {
		return false
	}
	c.done, c.err, c.deadline = nil, nil, time.Time{}
	return true
}

// Ahead is how soon a call's context ends whose client gives it so long: a twentieth before
// that, at most 5 ms. At the deadline itself a client ends the call, or its transport resets
// the stream, and one whose clock is a moment behind takes what it hears then for a
// cancellation by somebody else.
func Ahead(d time.Duration) time.Duration { return d - min(d/20, 5*time.Millisecond) }
