package accesslog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/logfile"
	"github.com/sluice-serve/sluice/infer"
)

// open opens a log with a file of its own.
func open(t testing.TB, change func(*Config), reopen chan os.Signal) *Log {
	t.Helper()
	c := DefaultConfig()
	c.File = filepath.Join(t.TempDir(), "access.log")
	if change != nil {
		change(&c)
	}
	l, err := Open(c, Deps{Reopen: reopen})
	if err != nil {
		t.Fatal(err)
	}
	l.pace = 5 * time.Millisecond
	return l
}

// run runs a log; the function it gives ends it.
func run(t testing.TB, l *Log) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// ids are the request ids of the lines of a file.
func ids(t testing.TB, path string) (ids []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var m struct {
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatalf("%v in %q", err, s.Text())
		}
		ids = append(ids, m.RequestID)
	}
	return ids
}

func add(l *Log, id string) {
	env, end := inference()
	env.RequestID = id
	l.Add(env, end)
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("still not: " + what)
		}
	}
}

func TestEveryLineArrivesWholeAndOnce(t *testing.T) {
	l := open(t, nil, nil)
	stop := run(t, l)
	var wg sync.WaitGroup
	const writers, each = 8, 500
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				add(l, strconv.Itoa(w*each+i))
			}
		})
	}
	wg.Wait()
	stop()
	seen := map[string]int{}
	for _, id := range ids(t, l.cfg.File) {
		seen[id]++
	}
	f := l.Figures()
	if len(seen) != int(f.Written) || f.Written+f.Lost != writers*each {
		t.Errorf("%d lines in the file, figures %+v, want %d together", len(seen), f, writers*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s stands there %d times", id, n)
		}
	}
}

func TestFullBufferLosesAndCounts(t *testing.T) {
	l := open(t, func(c *Config) { c.Buffer = 64 << 10 }, nil)
	for i := range 1000 { // nobody writes them out
		add(l, strconv.Itoa(i))
	}
	lost := l.Figures().Lost
	run(t, l)()
	got := ids(t, l.cfg.File)
	if lost == 0 || len(got)+int(lost) != 1000 || got[len(got)-1] != strconv.Itoa(len(got)-1) {
		t.Errorf("%d lines, %d lost, the last is %s; want the first ones, and 1000 together", len(got), lost, got[len(got)-1])
	}
}

func TestReopen(t *testing.T) {
	for name, signal := range map[string]bool{"told by the signal": true, "seen by itself": false} {
		t.Run(name, func(t *testing.T) {
			reopen := make(chan os.Signal, 1)
			l := open(t, nil, reopen)
			stop := run(t, l)
			defer stop()
			add(l, "before")
			eventually(t, "written", func() bool { return l.Figures().Written == 1 })
			if err := os.Rename(l.cfg.File, l.cfg.File+".old"); err != nil {
				t.Fatal(err)
			}
			if signal {
				reopen <- os.Interrupt
			}
			eventually(t, "opened again", func() bool { _, err := os.Stat(l.cfg.File); return err == nil })
			add(l, "after")
			stop()
			if old, now := ids(t, l.cfg.File+".old"), ids(t, l.cfg.File); strings.Join(old, " ") != "before" || strings.Join(now, " ") != "after" {
				t.Errorf("old file: %v, new file: %v", old, now)
			}
		})
	}
}

func TestRotationBySize(t *testing.T) {
	l := open(t, func(c *Config) { c.MaxBytes, c.Keep = 1000, 2 }, nil)
	stop := run(t, l)
	for i := range 12 {
		add(l, strconv.Itoa(i))
		eventually(t, "written", func() bool { return l.Figures().Written == uint64(i+1) })
	}
	stop()
	files, err := filepath.Glob(l.cfg.File + "*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 3 || l.Figures().Rotated < 3 {
		t.Errorf("files %v, %d rotations", files, l.Figures().Rotated)
	}
	newest := ids(t, l.cfg.File+".1")
	if older := ids(t, l.cfg.File+".2"); len(older) == 0 || len(newest) == 0 || older[0] >= newest[0] && len(older[0]) == len(newest[0]) {
		t.Errorf(".2 has %v, .1 has %v", older, newest)
	}
}

func TestSampling(t *testing.T) {
	l := open(t, func(c *Config) { c.Successes = 10; c.Slow = time.Hour }, nil)
	for i := range 100 {
		add(l, strconv.Itoa(i))
	}
	slow, end := inference()
	slow.RequestID, slow.Opened = "slow", infer.Now()-int64(2*time.Hour)
	l.Add(slow, end)
	failed, end := inference()
	failed.RequestID, end.Err = "failed", errors.New("x")
	l.Add(failed, end)
	health := &infer.Envelope{Protocol: "http", Action: infer.ActionHealth, RequestID: "health"}
	l.Add(health, &infer.End{Status: 200})
	l.Add(health, &infer.End{Status: 400})
	run(t, l)()
	got := ids(t, l.cfg.File)
	if len(got) != 13 || strings.Join(got[10:], " ") != "slow failed health" {
		t.Errorf("got %v; want one of ten, and slow failed health", got)
	}
}

func TestFileThatCannotBeOpened(t *testing.T) {
	c := DefaultConfig()
	c.File = filepath.Join(t.TempDir(), "none", "access.log")
	if _, err := Open(c, Deps{}); err == nil {
		t.Error("a file in a folder that is not there was opened")
	}
	if l, err := Open(Config{}, Deps{}); l != nil || err != nil {
		t.Errorf("without a file: %v, %v", l, err)
	}
}

// A disk that is full loses lines, counts them, and ends nothing.
func TestWriteThatFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	l := open(t, func(c *Config) { c.File = "/dev/full" }, nil)
	stop := run(t, l)
	add(l, "a")
	eventually(t, "lost", func() bool { return l.Figures().Lost == 1 })
	add(l, "b")
	eventually(t, "lost", func() bool { return l.Figures().Lost == 2 })
	stop()
}

// Nobody reads the pipe that the lines go to: the end of the server does not wait for it.
func TestEndDoesNotWaitForAReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, func(c *Config) { c.Buffer = 1 << 20 }, nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.file, l.patience = logfile.Wrap(w), 50*time.Millisecond
	for i := range 1000 { // more than a pipe holds
		add(l, strconv.Itoa(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Run still waits")
	}
	r.Close() // lets go of who writes
	eventually(t, "the writer ends", func() bool { return l.Figures().Lost+l.Figures().Written >= 1000 })
}

func TestAddDoesNotAllocate(t *testing.T) {
	l := open(t, func(c *Config) { c.Buffer = 64 << 20 }, nil)
	defer l.Close()
	env, end := inference()
	if n := testing.AllocsPerRun(1000, func() { l.Add(env, end) }); n > 0.1 { // the race detector empties pools now and then
		if !raceEnabled {
			t.Errorf("%v allocations a line", n)
		}
	}
}

// BenchmarkAdd is what the access log costs a request, the writing not counted.
func BenchmarkAdd(b *testing.B) {
	l := open(b, nil, nil)
	env, end := inference()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			l.swap(l.buffer)
		}
		l.Add(env, end)
	}
	b.StopTimer()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
