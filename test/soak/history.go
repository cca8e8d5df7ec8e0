package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// change is one load or unload of a model, as its caller saw it.
type change struct {
	start time.Time // before the call was sent
	// end is when the call had returned; zero while it has not. A call that its caller
	// abandoned may still act: its end is abandonedFor later.
	end      time.Time
	versions map[int]int32 // of a load: the number that each version adds; nil: an unload
	done     bool          // it returned without an error
}

// abandonedFor is how long a call that its caller abandoned may go on in the server.
const abandonedFor = 3 * time.Second

// keptFor is how long a superseded change is kept: longer than any exchange may take.
const keptFor = 3 * time.Minute

// endedBy says that the call had returned at a time.
func (c *change) endedBy(t time.Time) bool { return !c.end.IsZero() && !c.end.After(t) }

// history is what was loaded when, of one model. Calls overlap, so it knows what may have
// been in use at a time and what must have been. The zero value is a model that was never
// loaded. It is for many goroutines.
type history struct {
	mu      sync.Mutex
	changes []*change
}

// begin adds a change that is about to be asked for.
func (h *history) begin(versions map[int]int32) *change {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &change{start: time.Now(), versions: versions}
	h.changes = append(h.changes, c)
	return c
}

// finish notes the end of a change's call: done when it succeeded.
func (h *history) finish(c *change, done bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.end, c.done = time.Now(), done
	if done {
		old := c.end.Add(-keptFor)
		h.changes = slices.DeleteFunc(h.changes, func(o *change) bool { return o.supersededLocked(h, old) })
	}
}

// abandon notes that the caller of a change has left.
func (h *history) abandon(c *change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.end = time.Now().Add(abandonedFor)
}

// withdraw takes a change back that was refused and must have no effect.
func (h *history) withdraw(c *change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = slices.DeleteFunc(h.changes, func(o *change) bool { return o == c })
}

// supersededLocked says that a call which begins at t can't meet the change any more.
// h.mu is held.
func (c *change) supersededLocked(h *history, t time.Time) bool {
	return slices.ContainsFunc(h.changes, func(o *change) bool { return o.done && c.endedBy(o.start) && o.endedBy(t) })
}

// mayAdd says that an answer to a call between two times may have come from a version
// that adds k; version 0 is the latest. got is the version that the answer names, 0 if
// none.
func (h *history) mayAdd(k int32, version, got int, begin, end time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.changes, func(c *change) bool {
		if c.versions == nil || c.start.After(end) || c.supersededLocked(h, begin) {
			return false
		}
		want := version
		if want == 0 {
			for v := range c.versions {
				want = max(want, v)
			}
		}
		n, ok := c.versions[want]
		return ok && n == k && (got == 0 || got == want)
	})
}

// served says that the model's version 1 was loaded all the time between two times.
func (h *history) served(begin, end time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.changes, func(o *change) bool {
		return o.done && o.versions != nil && o.endedBy(begin) && !slices.ContainsFunc(h.changes, func(u *change) bool {
			return u.versions == nil && !u.endedBy(o.start) && !u.start.After(end)
		})
	})
}

// unchanged says that the model was loaded and no change was under way between two times.
func (h *history) unchanged(begin, end time.Time) bool {
	if !h.served(begin, end) {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(h.changes, func(c *change) bool { return !c.endedBy(begin) && !c.start.After(end) })
}

// String is the last changes, with their times before now.
func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out strings.Builder
	ago := func(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Microsecond) }
	for _, c := range h.changes[max(0, len(h.changes)-8):] {
		what := "unload"
		if c.versions != nil {
			what = fmt.Sprintf("load of %v", c.versions)
		}
		fmt.Fprintf(&out, "; %s began %v ago", what, ago(c.start))
		if !c.end.IsZero() {
			fmt.Fprintf(&out, ", ended %v ago, done %t", ago(c.end), c.done)
		}
	}
	return out.String()
}
