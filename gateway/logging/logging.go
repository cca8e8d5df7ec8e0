package logging

import (
	"context"
	"errors"
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

	"github.com/sluice-serve/sluice/gateway/logfile"
)

// LevelVerbose(n) is the level of verbose messages of level n: shown when the verbose
// level is at least n.
func LevelVerbose(n int) slog.Level { return slog.LevelDebug - slog.Level(n) + 1 }

// Settings are what --log-… flags and the logging extension set.
// Source: the logging extension of the v2 protocol; File, MaxBytes, Keep and Rate are set
// by flags alone.
type Settings struct {
	File    string // "": standard error
	Info    bool
	Warning bool
	Error   bool
	Verbose uint32 // 0: none
	Format  string // FormatDefault or FormatISO8601

	MaxBytes int64 // size from which the file is moved to File.1, and that to File.2; 0: never
	Keep     int   // files that were moved away and stay
	Rate     int   // lines a second of each place in the code (Bounded); 0: no bound
}

// The names of the line formats.
const (
	FormatDefault = "default"
	FormatISO8601 = "ISO8601"
)

// DefaultSettings are those of a server without --log-… flags.
func DefaultSettings() Settings {
	return Settings{Info: true, Warning: true, Error: true, Format: FormatDefault,
		MaxBytes: 256 << 20, Keep: 5, Rate: 100}
}

// Validate says what is wrong with s, or nil.
func (s Settings) Validate() error {
	if s.Format != FormatDefault && s.Format != FormatISO8601 {
		return fmt.Errorf("log_format should be either 'default' or 'ISO8601', got '%s'", s.Format)
	}
	var errs []error
	if s.MaxBytes != 0 && s.MaxBytes < maxLine {
		errs = append(errs, fmt.Errorf("--log-file-max-byte-size is %d, not 0 or at least %d, the longest line",
			s.MaxBytes, maxLine))
	}
	if s.MaxBytes > 0 && s.Keep < 1 {
		errs = append(errs, fmt.Errorf("--log-file-keep is %d, less than 1", s.Keep))
	}
	if s.Rate < 0 {
		errs = append(errs, fmt.Errorf("--log-rate is %d, less than 0", s.Rate))
	}
	return errors.Join(errs...)
}

// The bounds of a line in bytes: clients can't flood the log through a long id. What is
// longer is cut, and the line says how long it was.
const (
	maxLine  = 4096
	maxValue = 1024 // of one value, or of the message, before and after escaping
	maxKey   = 64
)

// Log is the sink of all log lines.
type Log struct {
	settings atomic.Pointer[Settings]
	base     *handler     // writes every line
	bounded  slog.Handler // base behind its bound
	written  [numLevels]atomic.Uint64
	lost     [numLevels]atomic.Uint64 // lines that the disk did not take
	pid      string

	lookEvery time.Duration // between two looks at the file's name

	mu         sync.Mutex
	out        io.Writer
	buf        []byte        // mu; reused for each line
	file       *logfile.File // mu; nil: standard error, or a test's writer
	complained time.Time     // mu; of the file
	warned     bool          // mu; of its permissions
}

// Open makes a Log; the file, where one is named, is appended to.
func Open(s Settings) (*Log, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	l := New(os.Stderr, s)
	if s.File == "" {
		return l, nil
	}
	f, err := logfile.Open(logfile.Config{Path: s.File, MaxBytes: s.MaxBytes, Keep: s.Keep})
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file, l.out = f, f
	l.warnLocked()
	return l, nil
}

// New makes a Log that writes to w, for tests and tools.
func New(w io.Writer, s Settings) *Log {
	l := &Log{out: w, pid: strconv.Itoa(os.Getpid()), lookEvery: time.Second}
	l.settings.Store(&s)
	l.base = &handler{log: l}
	l.bounded = Bounded(l.base, s.Rate)
	return l
}

// Close says which lines were left out and closes the file, if there is one. No line must
// come after it.
func (l *Log) Close() error {
	if b, ok := l.bounded.(*bounded); ok {
		b.bound.tell()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// Settings are those in force.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Set puts s in force for the lines that follow. What flags alone set can't be changed:
// those fields are ignored.
func (l *Log) Set(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	now := l.Settings()
	s.File, s.MaxBytes, s.Keep, s.Rate = now.File, now.MaxBytes, now.Keep, now.Rate
	l.settings.Store(&s)
	return nil
}

// Logger is what the rest of the server logs with.
func (l *Log) Logger() *slog.Logger { return slog.New(l.bounded) }

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
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return h.enabled(level) }

func (h *handler) enabled(level slog.Level) bool {
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
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	err := h.lineLocked(r)
	h.log.rotateLocked()
	return err
}

func (h *handler) lineLocked(r slog.Record) error {
	l := h.log
	b := l.appendHead(l.buf[:0], l.settings.Load().Format, r)
	b = appendQuoted(b, r.Message)
	for _, a := range h.attrs {
		b = appendAttr(b, "", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		b = appendAttr(b, h.prefix, a)
		return true
	})
	l.buf = append(cutLine(b), '\n')
	level := levelOf(r.Level)
	if _, err := l.out.Write(l.buf); err != nil {
		l.lost[level].Add(1)
		return err
	}
	l.written[level].Add(1)
	return nil
}

// cutLine bounds a line. What is cut is escaped already, so that nothing of it ends a line.
func cutLine(b []byte) []byte {
	const said = len("… (18446744073709551615 bytes)\n")
	if len(b) < maxLine {
		return b
	}
	n := maxLine - said
	for !utf8.RuneStart(b[n]) {
		n--
	}
	all := len(b)
	b = append(b[:n], "… ("...)
	return append(strconv.AppendInt(b, int64(all), 10), " bytes)"...)
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
	b = appendText(b, cutTo(prefix+a.Key, maxKey)) // a worker's records have names of its own
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
	return appendText(b, v.String())
}

// appendText writes a plain word as it is, and quotes what is none.
func appendText(b []byte, s string) []byte {
	if s == "" || len(s) > maxValue {
		return appendQuoted(b, s)
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '"' || c == '=' || c >= utf8.RuneSelf || c == 0x7f || c == '\\' {
			return appendQuoted(b, s)
		}
	}
	return append(b, s...)
}

// appendQuoted quotes s, as far as maxValue reaches: an escape takes up to ten bytes.
func appendQuoted(b []byte, s string) []byte {
	for n := maxValue; ; n /= 2 {
		quoted := strconv.AppendQuote(b, cutTo(s, n))
		if len(quoted)-len(b) <= maxValue+64 {
			return quoted
		}
	}
}
