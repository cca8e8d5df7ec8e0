// Package timerslack lets the kernel be late with this process's coarse timers.
//
// Go's monitor thread sleeps 20 µs at a time, for a millisecond after each moment in
// which the process had nothing to do. A server that waits for its workers a thousand
// times a second so spends a fifth of its CPU on waking that thread (measured; see
// docs/performance.md). With a timer slack of some milliseconds those sleeps fall
// together. Timers that must be exact stand on timerfd, which knows no slack.
//
// Slack belongs to threads and comes from the thread that made them, and the monitor
// thread is there before any code of ours. So the process sets its slack and executes
// itself again: same process ID, same files, once.
package timerslack

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// slack is how late a timer may be; Go's own timers are up to a millisecond late in an
// idle process anyway. Deadlines of gRPC calls are moved ahead by up to 5 ms, so they
// are still told of in time.
const slack = 4_000_000 // ns

// marker is set in the environment of the second execution, and can be set from
// outside to leave the slack as it is.
const marker = "SLUICE_TIMER_SLACK"

// Widen executes the program again with a wider slack, where it has the kernel's
// default; then it does not return. Otherwise it returns at once. An error means that
// the process goes on as it was.
func Widen() error {
	if _, done := os.LookupEnv(marker); done {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if now >= slack {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	return fmt.Errorf("timer slack: %w", unix.Exec(self, os.Args, append(os.Environ(), marker+"=set")))
}
