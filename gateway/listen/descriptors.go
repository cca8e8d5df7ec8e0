package listen

import (
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// Descriptors keeps file descriptors back from accept: a parked connection needs a second
// one for a moment to be woken, and workers, logs and caches need theirs. When no more than
// the reserve is free, a new connection is accepted for one that has been resting longest;
// where none rests, it waits for roomTime and is closed. nil keeps nothing back. It is safe
// for concurrent use, and has no goroutine.
type Descriptors struct {
	ceiling int // accepted connections have descriptors below it
	reserve int // the others
	batch   int // connections that are closed at one time
	log     *slog.Logger

	mu      sync.Mutex
	sources []func(now int64, to []Resting) []Resting
	closed  int64 // when a batch was that has freed nothing yet, on the clock of infer.Now; 0: there is none
	told    int64 // when the log was told last
	shed    int   // connections closed since
	refused int   // and new ones that found no room
}

// Resting is a connection that waits for a request.
type Resting struct {
	Since int64 // on the clock of infer.Now
	Conn  Shedder
}

// Shedder closes a connection. False: it doesn't rest any more, or not since that time.
type Shedder interface{ Shed(since int64) bool }

const (
	// leastRest is how long a connection must have been resting to be closed for another.
	// Living callers have shorter rests between requests, as a rule.
	leastRest = int64(time.Second)
	// roomTime is how long a new connection waits for a descriptor.
	roomTime = 3 * time.Second
	// roomLook is the time between two looks for one.
	roomLook = 5 * time.Millisecond
	// shedAgain is how long closing a batch may take before the next one is closed.
	shedAgain = int64(100 * time.Millisecond)
)

// NewDescriptors reads the process's limit of open files. Of that, a sixteenth is kept back,
// 16 at least and 256 at most.
func NewDescriptors(log *slog.Logger) *Descriptors {
	d := &Descriptors{ceiling: math.MaxInt, log: log}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return d // there is no limit to keep from
	}
	reserve := min(256, max(16, int(l.Cur)/16))
	d.ceiling, d.reserve, d.batch = int(l.Cur)-reserve, reserve, reserve/4
	return d
}

// Add lets connections of a transport be closed: resting appends those that wait for a
// request to a list. It is called without locks held.
func (d *Descriptors) Add(resting func(now int64, to []Resting) []Resting) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sources = append(d.sources, resting)
}

// admit makes room for an accepted connection, which is closed where there is none. The
// kernel gives the lowest descriptor that is free, so that one at the ceiling says that all
// below are in use. One that found room is moved below it: else those at the ceiling would
// fill the reserve one by one.
func (d *Descriptors) admit(c net.Conn, done <-chan struct{}) (net.Conn, bool) {
	if d == nil || descriptorOf(c) < d.ceiling {
		return c, true
	}
	if !d.room(done) {
		_ = c.Close() // nothing was said on it
		return nil, false
	}
	fd, err := Bare(c)
	if err != nil {
		return c, true // it stays where it is
	}
	if c, err = Dress(fd); err == nil {
		return c, true
	}
	if c != nil {
		_ = c.Close() // the error says more
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused++
	return nil, false
}

// descriptorOf is a connection's; -1 where there is none.
func descriptorOf(c net.Conn) int {
	n := -1
	if raw := socketOf(c); raw != nil {
		_ = raw.Control(func(fd uintptr) { n = int(fd) }) // else it is closed
	}
	return n
}

// room waits until two descriptors below the ceiling are free, closing connections that rest.
func (d *Descriptors) room(done <-chan struct{}) bool {
	deadline, look := time.NewTimer(roomTime), time.NewTicker(roomLook)
	defer deadline.Stop()
	defer look.Stop()
	for {
		if d.free() {
			d.mu.Lock()
			d.closed = 0
			d.mu.Unlock()
			return true
		}
		d.makeRoom(infer.Now())
		select {
		case <-look.C:
		case <-done:
			return false
		case <-deadline.C:
			d.refuse(infer.Now())
			return false
		}
	}
}

// free says whether two descriptors below the ceiling are.
func (d *Descriptors) free() bool {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return false
	}
	_, _ = unix.Close(p[0]), unix.Close(p[1]) // nothing is in it
	return max(p[0], p[1]) < d.ceiling
}

// makeRoom closes the connections that have been resting longest, unless it has just done so.
func (d *Descriptors) makeRoom(now int64) {
	d.mu.Lock()
	if d.batch == 0 || d.closed != 0 && now-d.closed < shedAgain {
		d.mu.Unlock()
		return
	}
	d.closed = now
	sources := slices.Clone(d.sources)
	d.mu.Unlock()
	var all []Resting
	for _, resting := range sources {
		all = resting(now, all)
	}
	all = slices.DeleteFunc(all, func(r Resting) bool { return now-r.Since < leastRest })
	slices.SortFunc(all, func(a, b Resting) int { return int(min(max(a.Since-b.Since, -1), 1)) })
	n := 0
	for _, r := range all {
		if n == d.batch {
			break
		}
		if r.Conn.Shed(r.Since) {
			n++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shed += n
	d.tellLocked(now)
}

func (d *Descriptors) refuse(now int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused++
	d.tellLocked(now)
}

// tellLocked logs once a second what was closed.
func (d *Descriptors) tellLocked(now int64) {
	if d.shed+d.refused == 0 || d.told != 0 && now-d.told < int64(time.Second) {
		return
	}
	d.log.Warn("out of file descriptors: connections that rest are closed for new ones", "closed", d.shed,
		"refused", d.refused, "limit", d.ceiling+d.reserve, "reserve", d.reserve)
	d.told, d.shed, d.refused = now, 0, 0
}
