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
// itself again: same process ID, same files, once. There the threads that run goroutines
// may have a narrow slack again (Narrow).
package timerslack

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, marker+"=") })
	env = append(env, marker+"="+strconv.FormatInt(int64(slack), 10))
	if err := set(slack); err != nil {
		return err
	}
	return errors.Join(fmt.Errorf("timer slack: %w", unix.Exec(self, os.Args, env)), set(time.Duration(now)))
}

// exact is the kernel's default.
const exact = 50 * time.Microsecond

// Narrow gives the threads that run goroutines exact timers again, where Widen has executed
// the program anew, and leaves the slack to those that run none, the monitor thread above
// all. A thread that would take over a goroutine which another has just made ready sleeps for
// 3 µs first; as long as it does nobody else is woken for what becomes ready.
//
// It occupies more threads at once than can run, twice, as one may just be waiting for the
// network. A program calls it first of all, and one with cgo again when a goroutine took a thread
// for itself: in its place a thread comes that has the slack of the runtime's own. An error
// means that some timers are late.
func Narrow() error {
	if v, err := strconv.ParseInt(os.Getenv(marker), 10, 64); err != nil || v <= 0 {
		return nil
	}
	err := narrow() // before a thread is made from this one
	for range 2 {
		err = errors.Join(err, narrowOthers(runtime.GOMAXPROCS(0)+ahead))
	}
	return err
}

// ahead is how many threads are narrowed beside those that can run at once.
const ahead = 4

func narrowOthers(n int) error {
	errs := make([]error, n)
	var all, here sync.WaitGroup
	here.Add(n)
	for i := range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[i] = narrow()
			here.Done()
			here.Wait() // nobody else gets this thread
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// narrow is of the calling thread.
func narrow() error { return set(exact) }

// set changes the calling thread's slack.
func set(slack time.Duration) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	return nil
}
