package loop

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A loop that was closed takes no source, whose news nobody would look at.
func TestAttachAfterClose(t *testing.T) {
	l := start(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := &source{fd: bell(t, 0), ended: make(chan struct{})}
	if err := l.Attach(s.fd, s); err == nil || len(l.fresh) > 0 {
		t.Errorf("it was taken: %v", err)
	}
}

// A loop that can't wait any more ends the process, since all that it serves would hang.
func TestBrokenLoopEndsProcess(t *testing.T) {
	const asked = "SLUICE_TEST_BREAK_LOOP"
	if os.Getenv(asked) != "" {
		l := start(t)
		if err := unix.Close(l.fd); err != nil {
			t.Fatal(err)
		}
		l.ring()
		l.runs.Wait()
		return
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenLoopEndsProcess$", "-test.timeout=20s")
	c.Env = append(os.Environ(), asked+"=1")
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a loop can't wait for events") {
		t.Errorf("%v: %s", err, out)
	}
}
