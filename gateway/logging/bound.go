package logging

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// saved is how many seconds' lines a place that was quiet may log at once.
const saved = 10

// tellEvery is how long lines are left out before the log says how many.
const tellEvery = time.Second

// maxCut is how much of one value Cut leaves.
const maxCut = 4096

// Bounded is a handler that passes on to next as many lines a second as rate, for each
// level of each place in the code that logs; a place that was quiet has ten seconds' lines
// at once. What comes on top is left out, and told with its number a second later, so that
// nobody who can make a place log, such as the clients of a model that fails, fills a disk
// or hides what other places have to say. rate 0 or less passes on everything.
//
// It starts no goroutine but a timer while lines are left out.
func Bounded(next slog.Handler, rate int) slog.Handler {
	if rate <= 0 {
		return next
	}
	return &bounded{Handler: next, bound: newBound(next, rate)}
}

// bounded is one of the handlers that With and WithGroup make of the first; they share a
// bound.
type bounded struct {
	slog.Handler
	bound *bound
}

// Handle passes a line on or counts it.
func (h *bounded) Handle(ctx context.Context, r slog.Record) error {
	if !h.bound.take(r.PC, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup are slog.Handler's.
func (h *bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &bounded{Handler: h.Handler.WithAttrs(attrs), bound: h.bound}
}

func (h *bounded) WithGroup(name string) slog.Handler {
	return &bounded{Handler: h.Handler.WithGroup(name), bound: h.bound}
}

// Cut is a ReplaceAttr of log/slog's handlers that bounds texts, which may be a client's.
func Cut(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(cutTo(a.Value.String(), maxCut))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(cutTo(err.Error(), maxCut))
		}
	}
	return a
}

// cutTo is s, or its first n bytes and how many there were.
func cutTo(s string, n int) string {
	if len(s) <= n {
		return s
	}
	whole := n
	for whole > n-utf8.UTFMax && !utf8.RuneStart(s[whole]) {
		whole--
	}
	return s[:whole] + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// place is a line of code that logs, with the level. There are as many as the program has.
type place struct {
	pc    uintptr
	level slog.Level
}

// bucket is a place's token bucket as one number. Source: the generic cell rate algorithm,
// ITU-T I.371.
type bucket struct {
	full    time.Duration // since the bound's begin: when all of the rate would be used up to now
	leftOut int           // lines that the log has not told of
}

// bound counts the lines of places.
type bound struct {
	next     slog.Handler
	interval time.Duration // between two lines of a place at its rate
	begin    time.Time

	mu     sync.Mutex
	places map[place]*bucket // mu
	timer  *time.Timer       // mu; nil: no place has lines that were left out
	total  [numLevels]uint64 // mu; lines that were left out
}

func newBound(next slog.Handler, rate int) *bound {
	interval := time.Second / time.Duration(rate)
	return &bound{next: next, interval: interval, begin: time.Now(), places: map[place]*bucket{}}
}

// take says that a place may log a line now.
func (b *bound) take(pc uintptr, level slog.Level) bool {
	now := time.Since(b.begin)
	at := place{pc, level}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.places[at]
	if p == nil {
		p = &bucket{full: now - saved*time.Second}
		b.places[at] = p
	}
	if full := max(p.full, now-saved*time.Second) + b.interval; full <= now {
		p.full = full
		return true
	}
	p.leftOut++
	b.total[levelOf(level)]++
	if b.timer == nil {
		b.timer = time.AfterFunc(tellEvery, b.tell)
	}
	return false
}

// tell logs how many lines of each place were left out since the last time.
func (b *bound) tell() {
	type missing struct {
		place
		lines int
	}
	var all []missing
	b.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	for at, p := range b.places {
		if p.leftOut > 0 {
			all = append(all, missing{at, p.leftOut})
			p.leftOut = 0
		}
	}
	b.mu.Unlock()
	log := slog.New(b.next)
	for _, m := range all {
		write := [...]func(string, ...any){log.Error, log.Warn, log.Info, log.Debug}[levelOf(m.level)]
		write("log lines were left out", "lines", m.lines, "at", where(m.pc))
	}
}

// counts are the lines that were left out, by level.
func (b *bound) counts() [numLevels]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// where is the file and line of a place.
func where(pc uintptr) string {
	if pc == 0 {
		return "unknown"
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return filepath.Base(f.File) + ":" + strconv.Itoa(f.Line)
}

// Level is a level as the settings and the figures have it.
type Level int

// The levels, by their letters in a line: E, W, I, V.
const (
	LevelError Level = iota
	LevelWarning
	LevelInfo
	LevelVerboseLines
	numLevels
)

// String is the level's name in metrics.
func (l Level) String() string {
	return [...]string{"error", "warning", "info", "verbose"}[l]
}

func levelOf(l slog.Level) Level {
	switch {
	case l >= slog.LevelError:
		return LevelError
	case l >= slog.LevelWarn:
		return LevelWarning
	case l >= slog.LevelInfo:
		return LevelInfo
	}
	return LevelVerboseLines
}
