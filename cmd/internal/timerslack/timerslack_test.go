package timerslack

import (
	"os"
	"os/exec"
	"strings"
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
	before := os.Getpid()
	if err := Widen(slack); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || time.Duration(now) != slack || before != os.Getpid() {
		os.Exit(2)
	}
	os.Stdout.WriteString(strings.Join(os.Args[1:], " "))
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
