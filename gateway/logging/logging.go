package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// LevelVerbose(n) is the level of verbose messages of level n: shown when the verbose
// level is at least n.
func LevelVerbose(n int) slog.Level { return slog.LevelDebug - slog.Level(n) + 1 }

// Settings are what --log-… flags and the logging extension set.
// Source: the logging extension of the v2 protocol.
type Settings struct {
	File    string // "": standard error
	Info    bool
	Warning bool
	Error   bool
	Verbose uint32 // 0: none
	Format  string // FormatDefault or FormatISO8601
}

// The names of the line formats.
const (
	FormatDefault = "default"
	FormatISO8601 = "ISO8601"
)

// DefaultSettings are those of a server without --log-… flags.
func DefaultSettings() Settings {
	return Settings{Info: true, Warning: true, Error: true, Format: FormatDefault}
}

// Validate says what is wrong with s, or nil.
func (s Settings) Validate() error {
	if s.Format != FormatDefault && s.Format != FormatISO8601 {
		return fmt.Errorf("log_format should be either 'default' or 'ISO8601', got '%s'", s.Format)
	}
	return nil
}

// maxValue is how much of one value a line shows; the rest is cut, so that a client
// can't flood the log through a long id.
const maxValue = 1024

// Log is the sink of all log lines.
type Log struct {
	settings atomic.Pointer[Settings]

	mu  sync.Mutex
	out io.Writer
	buf []byte // mu; reused for each line

	file *os.File // or nil
	pid  string
}

// Open makes a Log; the file, where one is named, is appended to.
func Open(s Settings) (*Log, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	l := &Log{out: os.Stderr, pid: strconv.Itoa(os.Getpid())}
	if s.File != "" {
		f, err := os.OpenFile(s.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("log file: %w", err)
		}
		l.file, l.out = f, f
	}
	l.settings.Store(&s)
	return l, nil
}

// New makes a Log that writes to w, for tests and tools.
func New(w io.Writer, s Settings) *Log {
	l := &Log{out: w, pid: strconv.Itoa(os.Getpid())}
	l.settings.Store(&s)
	return l
}

// Close closes the file, if there is one.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// Settings are those in force.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Set puts s in force for the lines that follow. The file can't be changed: its field
// is ignored.
func (l *Log) Set(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s.File = l.Settings().File
	l.settings.Store(&s)
	return nil
}

// Logger is what the rest of the server logs with.
func (l *Log) Logger() *slog.Logger { return slog.New(&handler{log: l}) }

// Print writes text as it is, for the start-up tables.
func (l *Log) Print(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.out, text)
	return err
}

// handler is Log as a slog.Handler with the attributes that With added.
type handler struct {
	log    *Log
	attrs  []slog.Attr
	prefix string // of a group, "a.b."
}

// Enabled says whether the settings show the level.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	s := h.log.settings.Load()
	switch {
	case level >= slog.LevelError:
		return s.Error
	case level >= slog.LevelWarn:
		return s.Warning
	case level >= slog.LevelInfo:
		return s.Info
	default:
		return slog.LevelDebug-slog.Level(s.Verbose)+1 <= level && s.Verbose > 0
	}
}

// Handle writes one line.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	l := h.log
	format := l.settings.Load().Format
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.appendHead(l.buf[:0], format, r)
	b = strconv.AppendQuote(b, cut(r.Message))
	for _, a := range h.attrs {
		b = appendAttr(b, "", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		b = appendAttr(b, h.prefix, a)
		return true
	})
	b = append(b, '\n')
	l.buf = b
	_, err := l.out.Write(b)
	return err
}

// WithAttrs and WithGroup are slog.Handler's.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	n.attrs = append([]slog.Attr(nil), h.attrs...)
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		n.attrs = append(n.attrs, a)
	}
	return &n
}

func (h *handler) WithGroup(name string) slog.Handler {
	n := *h
	n.prefix += name + "."
	return &n
}

// appendHead writes `I1121 10:54:28.707237 8638 file.go:12] ` or
// `2026-11-21T10:54:28Z I 8638 file.go:12] `.
func (l *Log) appendHead(b []byte, format string, r slog.Record) []byte {
	letter := byte('V')
	switch {
	case r.Level >= slog.LevelError:
		letter = 'E'
	case r.Level >= slog.LevelWarn:
		letter = 'W'
	case r.Level >= slog.LevelInfo:
		letter = 'I'
	}
	if format == FormatISO8601 {
		b = r.Time.UTC().AppendFormat(b, time.RFC3339)
		b = append(b, ' ', letter, ' ')
	} else {
		b = append(b, letter)
		b = r.Time.UTC().AppendFormat(b, "0102 15:04:05.000000")
		b = append(b, ' ')
	}
	b = append(b, l.pid...)
	b = append(b, ' ')
	if r.PC != 0 {
		f, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		b = append(b, filepath.Base(f.File)...)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(f.Line), 10)
	}
	return append(b, ']', ' ')
}

func appendAttr(b []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, g := range v.Group() {
			b = appendAttr(b, prefix, g)
		}
		return b
	}
	if a.Equal(slog.Attr{}) {
		return b
	}
	b = append(b, ' ')
	b = append(b, prefix...)
	b = append(b, a.Key...)
	b = append(b, '=')
	switch v.Kind() {
	case slog.KindInt64:
		return strconv.AppendInt(b, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(b, v.Uint64(), 10)
	case slog.KindBool:
		return strconv.AppendBool(b, v.Bool())
	case slog.KindDuration:
		return append(b, v.Duration().String()...)
	}
	return appendText(b, cut(v.String()))
}

// appendText quotes what is not a plain word.
func appendText(b []byte, s string) []byte {
	if s == "" {
		return append(b, '"', '"')
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '"' || c == '=' || c >= utf8.RuneSelf || c == 0x7f || c == '\\' {
			return strconv.AppendQuote(b, s)
		}
	}
	return append(b, s...)
}

func cut(s string) string {
	if len(s) <= maxValue {
		return s
	}
	return s[:maxValue] + "…"
}
