package shm

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/futex.h. The operations are not the private ones: the words are shared
// between processes.
const (
	futexWait = 0
	futexWake = 1
)

// waiter is a word that somebody sleeps on until a condition elsewhere holds. The one
// who sleeps arms it, looks at the condition again and calls sleep; the one who made
// the condition true calls wake, which costs one load while nobody sleeps.
type waiter struct{ word *uint32 }

func (w waiter) arm() { atomic.StoreUint32(w.word, 1) }

func (w waiter) disarm() { atomic.StoreUint32(w.word, 0) }

// sleep returns when woken, after timeout (0: none), on a signal, or for no reason.
func (w waiter) sleep(timeout time.Duration) {
	var ts *unix.Timespec
	if timeout > 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	// The scheduler must learn of the wait, so this is no raw system call. Its error
	// says only why it woke, which the caller finds out from the condition.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w.word)), futexWait, 1, uintptr(unsafe.Pointer(ts)), 0, 0)
}

func (w waiter) wake() {
	if atomic.LoadUint32(w.word) != 0 {
		w.rouse()
	}
}

// rouse is wake for the last time: whatever the word says. A peer may have ended between taking
// it back and waking, or never meant to wake.
func (w waiter) rouse() {
	atomic.StoreUint32(w.word, 0)
	// It can't block, so the scheduler need not know.
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w.word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// await sleeps until ready says so, or timeout (0: none) has passed. Where several
// sleep on one word they must not disarm it.
func (w waiter) await(timeout time.Duration, shared bool, ready func() bool) bool {
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
	}
	for {
		w.arm()
		if ready() {
			if !shared {
				w.disarm()
			}
			return true
		}
		var left time.Duration
		if timeout > 0 {
			if left = time.Until(end); left <= 0 {
				if !shared {
					w.disarm()
				}
				return false
			}
		}
		w.sleep(left)
		if ready() {
			return true
		}
	}
}
