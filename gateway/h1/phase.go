package h1

import (
	"time"

	"golang.org/x/sys/unix"
)

// phase is what a connection is at, for the watcher.
type phase int32

const (
	idle    phase = iota // waits for a request
	heading              // reads the rest of a head
	reading              // reads a body
	serving              // waits for its handler
	writing
	lingering // reads away what comes behind its last answer
)

// phaseBits are those of state that hold the phase.
const phaseBits = 3

// enter begins a phase. The watcher reads the clock for it.
func (c *conn) enter(p phase) {
	c.turn++
	c.state.Store(c.turn<<phaseBits | uint64(p))
	c.moved.Store(0)
}

func (c *conn) phase() phase { return phaseOf(c.state.Load()) }

func phaseOf(state uint64) phase { return phase(state & (1<<phaseBits - 1)) }

// hurry ends the connection after its request. Where it has none, one that is on its way
// is still answered, and told that it is the last.
func (c *conn) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	switch {
	case c.place == parked && !c.pending:
		c.driveLocked()
	case c.place == driven && (c.phase() == idle || c.phase() == lingering):
		c.deadline(time.Now().Add(restTime))
	}
}

// restTime is how long a connection without a request stays open when the server stops.
const restTime = 500 * time.Millisecond

var past = time.Unix(1, 0)

// cut ends the connection now.
func (c *conn) cut() {
	c.mu.Lock()
	outer := c.outer
	if c.fd >= 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // who has it sees it
	}
	c.mu.Unlock()
	_ = outer.Close() // its goroutine sees it
	c.left()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.place == parked {
		c.driveLocked()
	}
}

// trimAfter is how long a connection rests before it gives memory back.
const trimAfter = 2 * time.Second

// check ends what takes too long. A body's reading ends with an error that its handler
// can still answer. The watcher calls it once a second, so what it ends has had up to
// two seconds more than its time.
func (c *conn) check(now int64) {
	state, moved := c.state.Load(), c.moved.Load()
	if state != c.seen.Load() {
		c.seenAt.Store(now)
		c.seen.Store(state)
		return
	}
	if c.state.Load() != state {
		return // moved may be the next phase's
	}
	cfg := &c.s.cfg
	took, slow := time.Duration(now-c.seenAt.Load()), cfg.BodyTimeout+time.Duration(moved/cfg.MinRate)*time.Second
	switch phaseOf(state) {
	case idle:
		switch {
		case took > cfg.IdleTimeout:
			c.cut()
		case took > trimAfter:
			c.trim(state)
		}
	case heading:
		if took > cfg.ReadHeaderTimeout {
			c.cut()
		}
	case reading:
		if took > slow {
			c.giveUp(state)
		}
	case writing:
		if took > slow {
			c.cut()
		}
	}
}

// giveUp ends the reading of a body.
func (c *conn) giveUp(state uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && c.state.Load() == state {
		c.over = true
		c.deadline(past)
	}
}

// deadline bounds reads. A connection that is broken or closed shows soon enough.
func (c *conn) deadline(t time.Time) {
	if c.nc != nil {
		_ = c.nc.SetReadDeadline(t)
	}
}

// rousedLocked ends what trim began, since reading goes on. It says that trim did.
func (c *conn) rousedLocked() bool {
	if !c.trimming {
		return false
	}
	c.trimming = false
	if c.closing {
		c.deadline(time.Now().Add(restTime))
	} else {
		c.deadline(time.Time{})
	}
	return true
}

// trim lets a connection that rests give back its memory.
func (c *conn) trim(state uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.large || c.closing || c.pending || c.state.Load() != state: // pending: its memory is in use
	case c.place == parked:
		c.large, c.out = false, nil
	case c.place == driven:
		c.large, c.trimming = false, true
		c.deadline(past) // wakes its goroutine
	}
}

// trimmed says that a read was ended by trim, and gives the memory back.
func (c *conn) trimmed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.rousedLocked() {
		return false
	}
	c.buf, c.r, c.w, c.out = make([]byte, firstBuffer), 0, 0, nil // nothing is in them
	return true
}

// readDone ends the reading of a body, and a deadline that came too late.
func (c *conn) readDone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter(serving)
	if c.over {
		c.over = false
		c.deadline(time.Time{})
	}
}
