package logging

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedBuffer takes the lines of a Log and of its timer.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.b.String(), "\n"), "\n")
}

var leftOut = regexp.MustCompile(`"log lines were left out" lines=(\d+)`)

// sum adds up the lines that were left out.
func sum(t *testing.T, lines []string) (n int) {
	t.Helper()
	for _, line := range lines {
		if m := leftOut.FindStringSubmatch(line); m != nil {
			some, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			n += some
		}
	}
	return n
}

// TestFloodIsBounded: a place that logs without end gets its rate, others are not silenced
// by it, and the log says how many lines are not there.
func TestFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		s := DefaultSettings()
		s.Rate = 100
		l := New(&out, s)
		log := l.Logger()
		const seconds, each = 30, 2000
		for i := range seconds * each {
			log.Error("request failed", "n", i)
			time.Sleep(time.Second / each)
		}
		log.Error("the worker is lost")
		time.Sleep(2 * time.Second)
		lines := out.lines()
		if most := saved*100 + seconds*100 + 2*seconds; len(lines) > most {
			t.Errorf("%d lines in %d s, want %d at most", len(lines), seconds, most)
		}
		if !strings.Contains(strings.Join(lines, "\n"), "the worker is lost") {
			t.Error("the flood silenced another place")
		}
		shown := strings.Count(strings.Join(lines, "\n"), "request failed")
		if got := sum(t, lines); shown+got != seconds*each {
			t.Errorf("%d lines are there and %d are said to be left out, want %d together", shown, got, seconds*each)
		}
		if f := l.Figures()[LevelError]; f.LeftOut != uint64(seconds*each-shown) || f.Written < uint64(shown) {
			t.Errorf("figures %+v, want %d left out", f, seconds*each-shown)
		}
		log.Error("request failed", "after", "the flood")
		if last := out.lines(); !strings.Contains(last[len(last)-1], "after=") {
			t.Errorf("after the flood the last line is %s", last[len(last)-1])
		}
	})
}

// TestCloseTellsWhatWasLeftOut: the last second is not silent.
func TestCloseTellsWhatWasLeftOut(t *testing.T) {
	var out lockedBuffer
	s := DefaultSettings()
	s.Rate = 1
	l := New(&out, s)
	for range 100 {
		l.Logger().Warn("again")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := sum(t, out.lines()); got != 100-saved {
		t.Errorf("%d lines are said to be left out, want %d", got, 100-saved)
	}
}

func TestWithoutBound(t *testing.T) {
	var out lockedBuffer
	s := DefaultSettings()
	s.Rate = 0
	log := New(&out, s).Logger()
	for i := range 5000 {
		log.Error("x", "i", i)
	}
	if got := len(out.lines()); got != 5000 {
		t.Errorf("%d lines, want all 5000", got)
	}
}

// TestBoundedHandler holds for the logs of the worker and the control plane, which go
// through a handler of log/slog.
func TestBoundedHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		h := Bounded(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: Cut}), 10)
		log := slog.New(h).With("worker", "cpu")
		text, err := strings.Repeat("x", 16<<10), fmt.Errorf("%s", strings.Repeat("y", 16<<10))
		for range 1000 {
			log.Warn("ONNX Runtime complains", "text", text, "error", err)
		}
		time.Sleep(2 * time.Second)
		lines := out.lines()
		last := lines[len(lines)-1]
		if len(lines) != 10*saved+1 || !strings.Contains(last, `msg="log lines were left out" lines=900`) {
			t.Errorf("%d lines, the last is %.300s", len(lines), last)
		}
		if len(lines[0]) > 3*maxCut {
			t.Errorf("a line has %d bytes", len(lines[0]))
		}
	})
}

// TestConcurrentLines: no line is lost or torn, with many writers and with rotation.
func TestConcurrentLines(t *testing.T) {
	s := fileSettings(t)
	s.Rate, s.MaxBytes, s.Keep = 0, 16<<10, 1000
	l, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			log := l.Logger().With("writer", w)
			for i := range each {
				log.Info("line", "i", i)
				if i%100 == 0 {
					l.Reopen()
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ bound_test\.go:\d+\] "line" writer=(\d) i=(\d+)$`)
	seen := map[string]int{}
	for _, path := range files(t, s.File) {
		for line := range strings.Lines(read(t, path)) {
			m := whole.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if m == nil {
				t.Fatalf("%s: a torn line %q", path, line)
			}
			seen[m[1]+" "+m[2]]++
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d different lines, want %d", len(seen), writers*each)
	}
	for line, n := range seen {
		if n != 1 {
			t.Errorf("%s stands there %d times", line, n)
		}
	}
	if got := len(files(t, s.File)); got < 10 {
		t.Errorf("%d files: rotation did not run", got)
	}
}
