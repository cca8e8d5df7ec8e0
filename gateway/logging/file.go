package logging

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-serve/sluice/gateway/logfile"
)

// complainFor is the time between two complaints about the file.
const complainFor = time.Minute

// Run keeps the file at its name until ctx ends: it is opened again when reopen says so
// (SIGHUP), and within a second when the name belongs to another file. reopen may be nil.
func (l *Log) Run(ctx context.Context, reopen <-chan os.Signal) error {
	var look <-chan time.Time // without a file there is nothing to look at
	if l.hasFile() {
		tick := time.NewTicker(l.lookEvery)
		defer tick.Stop()
		look = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reopen:
			l.Reopen()
		case <-look:
			if l.moved() {
				l.Reopen()
			}
		}
	}
}

func (l *Log) hasFile() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file != nil
}

func (l *Log) moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file != nil && l.file.Moved()
}

// Reopen opens the file by its name again. While that fails lines go on into the file of
// before, which says so at most once a minute.
func (l *Log) Reopen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	l.complainLocked("the log's file can't be opened again; lines go on into the file of before", l.file.Reopen())
	l.warnLocked()
}

// rotateLocked moves a file away that is full.
func (l *Log) rotateLocked() {
	if l.file != nil && l.file.Full() {
		l.complainLocked("the log's file can't be moved away for its size; it grows on", l.file.Rotate())
	}
}

// complainLocked logs what is wrong with the file, now and then.
func (l *Log) complainLocked(what string, err error) {
	if err == nil || !l.complained.IsZero() && time.Since(l.complained) < complainFor {
		return
	}
	l.complained = time.Now()
	l.tellLocked(slog.LevelError, what, slog.Any("error", err))
}

// warnLocked says once that a file which was there before lets others read it.
func (l *Log) warnLocked() {
	mode := l.file.Wide()
	if mode == 0 || l.warned {
		return
	}
	l.warned = true
	const what = "others than its owner and group may use the log's file; its permissions stay as they are"
	l.tellLocked(slog.LevelWarn, what,
		slog.String("mode", mode.String()), slog.String("of_new_files", logfile.Mode.String()))
}

// tellLocked logs a line about the file into it.
func (l *Log) tellLocked(level slog.Level, what string, attr ...slog.Attr) {
	if !l.base.enabled(level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, what, 0)
	r.AddAttrs(slog.String("file", l.settings.Load().File))
	r.AddAttrs(attr...)
	_ = l.base.lineLocked(r) // counted where it can't be written
}

// Figures are what became of the lines of a level.
type Figures struct {
	Written uint64
	LeftOut uint64 // by the bound of lines a second
	Failed  uint64 // that could not be written
}

// Figures are those up to now, by Level.
func (l *Log) Figures() (f [numLevels]Figures) {
	var leftOut [numLevels]uint64
	if b, ok := l.bounded.(*bounded); ok {
		leftOut = b.bound.counts()
	}
	for i := range f {
		f[i] = Figures{Written: l.written[i].Load(), LeftOut: leftOut[i], Failed: l.lost[i].Load()}
	}
	return f
}
