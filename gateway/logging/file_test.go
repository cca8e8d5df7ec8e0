package logging

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fileSettings are the defaults with a file of the test's own.
func fileSettings(t *testing.T) Settings {
	t.Helper()
	s := DefaultSettings()
	s.File = filepath.Join(t.TempDir(), "server.log")
	return s
}

func files(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFileMode: lines name callers, models and what requests asked for.
func TestFileMode(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	s := fileSettings(t)
	for _, wide := range []bool{false, true} {
		if wide {
			if err := os.Chmod(s.File, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		l, err := Open(s)
		if err != nil {
			t.Fatal(err)
		}
		l.Reopen() // the warning comes once
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.File)
		if err != nil {
			t.Fatal(err)
		}
		mode, warnings := os.FileMode(0o640), 0
		if wide {
			mode, warnings = 0o666, 1
		}
		if got := info.Mode().Perm(); got != mode {
			t.Errorf("the file has mode %v, want %v", got, mode)
		}
		if got := strings.Count(read(t, s.File), "its permissions stay as they are"); got != warnings {
			t.Errorf("wide %v: %d warnings in %q", wide, got, read(t, s.File))
		}
	}
}

// TestReopen: no line is lost when logrotate moves the file, told by the signal or not.
func TestReopen(t *testing.T) {
	for name, signal := range map[string]bool{"told by the signal": true, "seen by itself": false} {
		t.Run(name, func(t *testing.T) {
			s := fileSettings(t)
			l, err := Open(s)
			if err != nil {
				t.Fatal(err)
			}
			l.lookEvery = 5 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			reopen := make(chan os.Signal)
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx, reopen) }()
			l.Logger().Info("before")
			if err := os.Rename(s.File, s.File+".old"); err != nil {
				t.Fatal(err)
			}
			if signal {
				reopen <- os.Interrupt
			}
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				if _, err := os.Stat(s.File); err == nil {
					break
				}
			}
			l.Logger().Info("after")
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			old, now := read(t, s.File+".old"), read(t, s.File)
			if !strings.Contains(old, `"before"`) || !strings.Contains(now, `"after"`) {
				t.Errorf("old file: %q, new file: %q", old, now)
			}
		})
	}
}

// TestRotationBySize: the disk that the log takes is bounded.
func TestRotationBySize(t *testing.T) {
	s := fileSettings(t)
	s.MaxBytes, s.Keep, s.Rate = 8<<10, 2, 0
	l, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		l.Logger().Error("request failed", "error", strings.Repeat("x", 500))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var all int64
	for _, path := range files(t, s.File) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		all += info.Size()
	}
	if n := len(files(t, s.File)); n != 3 || all > 3*(8<<10+maxLine) {
		t.Errorf("%d files of %d bytes", n, all)
	}
}

// TestDiskThatIsFull: lines are lost and counted, and nothing ends.
func TestDiskThatIsFull(t *testing.T) {
	s := DefaultSettings()
	s.File = "/dev/full"
	l, err := Open(s)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	l.Logger().Error("x")
	l.Logger().Error("x")
	if f := l.Figures()[LevelError]; f.Failed != 2 || f.Written != 0 {
		t.Errorf("figures %+v, want 2 that could not be written", f)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"a format that is none": func(s *Settings) { s.Format = "xml" },
		"a file of few lines":   func(s *Settings) { s.MaxBytes = 10 },
		"no file kept":          func(s *Settings) { s.Keep = 0 },
		"a negative rate":       func(s *Settings) { s.Rate = -1 },
	} {
		s := DefaultSettings()
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&s)
		if s.Validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
