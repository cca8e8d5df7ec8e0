package logging

import (
	"bytes"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
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

// TestHostileValues: a client's text must not be able to begin a line of its own, to flood
// the log, or to push the rest of its line out of it; a worker's record may have names of
// attributes that are as hostile.
func TestHostileValues(t *testing.T) {
	const forged = "x\nE1121 00:00:00.000000 1 a.go:1] \"forged\"\u2028\u202e\x1b[2J"
	for name, log := range map[string]func(*slog.Logger){
		"value":     func(l *slog.Logger) { l.Error("failed", "id", forged, "last", "one") },
		"message":   func(l *slog.Logger) { l.Error(forged, "last", "one") },
		"name":      func(l *slog.Logger) { l.Error("failed", forged+"=", "x", "last", "one") },
		"group":     func(l *slog.Logger) { l.Error("failed", slog.Group(forged, "id", "x"), "last", "one") },
		"attribute": func(l *slog.Logger) { l.With(forged, forged).WithGroup(forged).Error("failed", "last", "one") },
		"long":      func(l *slog.Logger) { l.Error("failed", "id", strings.Repeat("z", 1<<20), "last", "one") },
		"escaped":   func(l *slog.Logger) { l.Error("failed", "id", strings.Repeat("\x00\xff", 1<<18), "last", "one") },
		"text":      func(l *slog.Logger) { l.Error(strings.Repeat("é\n", 1<<18), "last", "one") },
		"long name": func(l *slog.Logger) { l.Error("failed", strings.Repeat("k\n", 1<<18), "x", "last", "one") },
	} {
		var out bytes.Buffer
		log(New(&out, DefaultSettings()).Logger())
		got := strings.TrimSuffix(out.String(), "\n")
		if strings.ContainsFunc(got, func(r rune) bool { return !strconv.IsPrint(r) }) || !utf8.ValidString(got) {
			t.Errorf("%s: %q has what is not printed", name, got)
		}
		if len(got) > 3000 {
			t.Errorf("%s: the line has %d bytes", name, len(got))
		}
		if !strings.HasSuffix(strings.ReplaceAll(got, `last"=`, "last="), "last=one") {
			t.Errorf("%s: the rest of the line is lost: %q", name, got)
		}
		if strings.Contains(name, "long") && !strings.Contains(got, " bytes)") {
			t.Errorf("%s: nothing says how long it was: %q", name, got)
		}
	}
}

// TestLineIsBounded: many values don't make a line longer, either.
func TestLineIsBounded(t *testing.T) {
	for _, text := range []string{"z", "é", "\n"} {
		var out bytes.Buffer
		log := New(&out, DefaultSettings()).Logger()
		for i := range 50 {
			log = log.With(strconv.Itoa(i), strings.Repeat(text, 500+i))
		}
		log.Error("failed")
		got := out.String()
		if len(got) > maxLine || strings.Count(got, "\n") != 1 || !utf8.ValidString(got) ||
			!strings.HasSuffix(got, " bytes)\n") {
			t.Errorf("%q: a line of %d bytes that ends with %q", text, len(got), got[len(got)-60:])
		}
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
	before := l.Settings()
	s.File, s.Rate, s.MaxBytes, s.Keep = "/etc/passwd", 0, 0, 1
	if err := l.Set(s); err != nil || l.Settings() != before {
		t.Errorf("what flags alone set became %+v, %v, want %+v", l.Settings(), err, before)
	}
	s.Format = "xml"
	if err := l.Set(s); err == nil {
		t.Error("format xml was accepted")
	}
}
