package timerslack

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const slack = 4 * time.Millisecond

// The test binary executes itself twice: as the child of the test, and from Widen.
func TestMain(m *testing.M) {
	if os.Getenv("TIMERSLACK_CHILD") == "" {
		os.Exit(m.Run())
	}
	again := os.Getenv(marker) == strconv.Itoa(int(slack))
	if again && current() != slack {
		os.Exit(2)
	}
	if err := errors.Join(Narrow(), Widen(slack)); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	if !again {
		os.Exit(2)
	}
	if late := lateThreads(); late > 1 { // one may have been elsewhere
		os.Stderr.WriteString(strconv.Itoa(late) + " goroutines have late timers")
		os.Exit(3)
	}
	os.Stdout.WriteString(strings.Join(os.Args[1:], " "))
}

// current is the slack of the calling thread.
func current() time.Duration {
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return -1
	}
	return time.Duration(now)
}

// lateThreads is how many of the threads that run goroutines, all at once, have a slack.
func lateThreads() int {
	var late atomic.Int64
	var all, here sync.WaitGroup
	const n = 4
	here.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if current() != exact {
				late.Add(1)
			}
			here.Done()
			here.Wait()
		})
	}
	all.Wait()
	return int(late.Load())
}

func TestWiden(t *testing.T) {
	cmd := exec.Command(os.Args[0], "an", "argument")
	cmd.Env = append(os.Environ(), "TIMERSLACK_CHILD=1")
	out, err := cmd.Output()
	if err != nil || string(out) != "an argument" {
		t.Errorf("got %q, %v", out, err)
	}
}

// A process that inherits the marker of its parent's narrower slack goes on from there.
func TestWidenFurther(t *testing.T) {
	cmd := exec.Command(os.Args[0], "again")
	cmd.Env = append(os.Environ(), "TIMERSLACK_CHILD=1", marker+"=2000000")
	out, err := cmd.Output()
	if err != nil || string(out) != "again" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestLeftAlone(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TIMERSLACK_CHILD=1", marker+"=0")
	var exit *exec.ExitError
	if err := cmd.Run(); err == nil {
		t.Error("the slack was changed though it was asked to be left")
	} else if !isExit(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("got %v", err)
	}
}

func isExit(err error, to **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError)
	*to = e
	return ok
}

// A program that can't be executed again has the timers that it had.
func TestWidenFails(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Setenv("TOO_LONG", strings.Repeat("x", 1<<20)) // E2BIG
	before := current()
	if err := Widen(slack); err == nil || current() != before {
		t.Errorf("got %v and a slack of %v, want an error and %v", err, current(), before)
	}
}
