package schedule

import (
	"container/heap"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// Alarm is a Clock whose timers fire tens of microseconds late at most, where Go's
// own fire up to a millisecond late in an idle process (epoll waits in milliseconds).
// It is one timerfd in the network poller, one goroutine and a heap for the whole
// gateway; setting a timer is a system call only when it becomes the earliest.
type Alarm struct {
	file *os.File
	fd   int
	done chan struct{}

	mu     sync.Mutex
	closed bool
	timers alarmHeap
	armed  int64 // what the timerfd is set to; 0: nothing
	err    error // why the loop ended, other than by Close
}

// NewAlarm makes an alarm and starts its goroutine, which Close ends.
func NewAlarm() (*Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	a := &Alarm{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd, done: make(chan struct{})}
	go a.run()
	return a, nil
}

// Now is infer.Now.
func (a *Alarm) Now() int64 { return infer.Now() }

// NewTimer makes a timer whose f runs on the alarm's goroutine.
func (a *Alarm) NewTimer(f func()) Timer { return &alarmTimer{a: a, f: f, index: -1} }

// Close stops the goroutine and waits for it; no timer fires after that. It returns
// what broke the alarm before, if something did.
func (a *Alarm) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		<-a.done
		return nil
	}
	a.closed = true
	a.timers = nil
	a.mu.Unlock()
	err := a.file.Close()
	<-a.done
	return errors.Join(a.err, err)
}

func (a *Alarm) run() {
	defer close(a.done)
	var count [8]byte
	for {
		if _, err := a.file.Read(count[:]); err != nil {
			a.mu.Lock()
			if !a.closed {
				a.err = fmt.Errorf("timerfd: %w", err)
			}
			a.mu.Unlock()
			return
		}
		a.fire()
	}
}

// fire runs what is due, then arms the timerfd for the next.
func (a *Alarm) fire() {
	for {
		a.mu.Lock()
		a.armed = 0
		if a.closed || len(a.timers) == 0 {
			a.mu.Unlock()
			return
		}
		now := infer.Now()
		t := a.timers[0]
		if t.at > now {
			a.armLocked(t.at, now)
			a.mu.Unlock()
			return
		}
		heap.Pop(&a.timers)
		a.mu.Unlock()
		t.f()
	}
}

func (a *Alarm) armLocked(at, now int64) {
	a.armed = at
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(at-now, 1))}
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		// The arguments are valid and the descriptor is open: only a bug of ours fails here.
		panic(fmt.Sprintf("timerfd_settime: %v", err))
	}
}

type alarmTimer struct {
	a *Alarm
	f func()

	// Guarded by a.mu.
	at    int64
	index int // in the heap; -1: not set
}

func (t *alarmTimer) Set(at int64) {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	t.at = at
	if t.index >= 0 {
		heap.Fix(&a.timers, t.index)
	} else {
		heap.Push(&a.timers, t)
	}
	if first := a.timers[0].at; a.armed == 0 || first < a.armed {
		a.armLocked(first, infer.Now())
	}
}

func (t *alarmTimer) Stop() {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed && t.index >= 0 {
		heap.Remove(&a.timers, t.index)
	}
}

type alarmHeap []*alarmTimer

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *alarmHeap) Push(x any) {
	t := x.(*alarmTimer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *alarmHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
