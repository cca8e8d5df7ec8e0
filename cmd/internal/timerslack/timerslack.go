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
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// marker is set in the environment of the second execution, to its slack in nanoseconds,
// and can be set from outside to leave the slack as it is: to what is no number, or 0.
const marker = "SLUICE_TIMER_SLACK"

// Widen executes the program again with a slack, where it has a narrower one; then it does
// not return. Otherwise it returns at once. An error means that the process goes on as it
// was.
func Widen(slack time.Duration) error {
	if v, ok := os.LookupEnv(marker); ok {
		if done, err := strconv.ParseInt(v, 10, 64); err != nil || done == 0 || done >= int64(slack) {
			return nil
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if int64(now) >= int64(slack) {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, marker+"=") })
	env = append(env, marker+"="+strconv.FormatInt(int64(slack), 10))
	return fmt.Errorf("timer slack: %w", unix.Exec(self, os.Args, env))
}
