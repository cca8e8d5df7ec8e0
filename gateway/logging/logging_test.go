package logging

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

func TestLineFormats(t *testing.T) {
	for name, want := range map[string]string{
		FormatDefault: `^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ logging_test\.go:\d+\] "hello" model=m n=3 why="a b"\n$`,
		FormatISO8601: `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ logging_test\.go:\d+\] "hello" model=m n=3 why="a b"\n$`,
	} {
		var out bytes.Buffer
		s := DefaultSettings()
		s.Format = name
		New(&out, s).Logger().With("model", "m").Info("hello", "n", 3, "why", "a b")
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("format %s: got %q, want %s", name, out.String(), want)
		}
	}
}

// A client's text must not be able to begin a line of its own, or to flood the log.
func TestHostileValues(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, DefaultSettings()).Logger()
	log.Error("failed", "id", "x\nE1121 00:00:00.000000 1 a.go:1] \"forged\"", "long", strings.Repeat("z", 1<<20))
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("one record made %d lines", n)
	}
	if out.Len() > 4096 {
		t.Errorf("a record with a long value made %d bytes", out.Len())
	}
}

func TestSettingsAtRunTime(t *testing.T) {
	var out bytes.Buffer
	l := New(&out, DefaultSettings())
	log := l.Logger()
	verbose := func(n int) bool { return log.Enabled(t.Context(), LevelVerbose(n)) }
	if verbose(1) || !log.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("defaults: verbose on or info off")
	}
	s := l.Settings()
	s.Verbose, s.Info = 2, false
	if err := l.Set(s); err != nil {
		t.Fatal(err)
	}
	if !verbose(1) || !verbose(2) || verbose(3) || log.Enabled(t.Context(), slog.LevelInfo) {
		t.Errorf("verbose 2, info off: verbose 1..3 %v %v %v", verbose(1), verbose(2), verbose(3))
	}
	s.Format = "xml"
	if err := l.Set(s); err == nil {
		t.Error("format xml was accepted")
	}
}
