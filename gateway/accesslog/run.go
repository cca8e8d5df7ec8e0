package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluice-serve/sluice/gateway/logfile"
	"github.com/sluice-serve/sluice/internal/tick"
)

// lastWords is how long the last lines may take once the log ends.
const lastWords = 2 * time.Second

// flushEvery is how long a line waits for the disk, at most; the file is looked for by its
// name at every fifth time. complainFor is the time between two complaints.
const (
	flushEvery  = 200 * time.Millisecond
	complainFor = time.Minute
)

// Run writes lines until ctx ends, then writes what waits and closes the file. A file that
// can't be written loses lines and ends nothing: it is tried again. Whoever reads standard
// output, or a pipe, may have stopped to do so: the end waits for that no longer than
// lastWords, and leaves the goroutine that writes behind.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- l.serve(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(l.patience)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		if l.deps.Log != nil {
			l.deps.Log.Error("the access log's last lines are lost: nobody took them in time", "file", l.cfg.File, "waited", l.patience)
		}
		return nil
	}
}

// serve is Run as long as the file takes lines.
func (l *Log) serve(ctx context.Context) error {
	pace := tick.New(l.pace)
	defer pace.Stop()
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return l.file.Close()
		case <-l.deps.Reopen:
			l.flush() // what was said before belongs to the file of before
			l.reopen()
		case <-l.wake:
			l.flush()
		case now := <-pace.C:
			pace.Next()
			l.flush()
			if now.Sub(looked) >= 5*l.pace {
				looked = now
				if l.file.Moved() {
					l.reopen()
				}
			}
		}
	}
}

// Close closes the file of a log that is not run.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

func (l *Log) flush() {
	full, n := l.swap(l.spare)
	l.spare = full
	if n == 0 {
		return
	}
	if taken, err := l.file.Write(full); err != nil {
		whole := bytes.Count(full[:taken], []byte{'\n'})
		l.written.Add(uint64(whole))
		l.lost.Add(uint64(n - whole))
		l.complain(err)
		l.reopen()
		return
	}
	l.written.Add(uint64(n))
	if l.file.Full() {
		l.rotated.Add(1)
		l.complain(l.file.Rotate())
	}
}

// complain logs what is wrong with the file, now and then.
func (l *Log) complain(err error) {
	if err == nil || l.deps.Log == nil || time.Since(l.complained) < complainFor {
		return
	}
	l.complained = time.Now()
	l.deps.Log.Error("the access log can't be written; its lines are lost and counted", "file", l.cfg.File, "error", err)
}

// open opens the file; others than owner and group may not read who called.
func (l *Log) open() (err error) {
	if l.cfg.File == Stdout {
		l.file = logfile.Wrap(os.Stdout)
		return nil
	}
	l.file, err = logfile.Open(logfile.Config{Path: l.cfg.File, MaxBytes: l.cfg.MaxBytes, Keep: l.cfg.Keep})
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	l.warn()
	return nil
}

// reopen opens the file by its name again.
func (l *Log) reopen() {
	l.complain(l.file.Reopen())
	l.warn()
}

// warn says once that a file which was there before lets others read it.
func (l *Log) warn() {
	if mode := l.file.Wide(); mode != 0 && !l.warned && l.deps.Log != nil {
		l.warned = true
		l.deps.Log.Warn("others than its owner and group may use the access log; its permissions stay as they are",
			"file", l.cfg.File, "mode", mode.String(), "of_new_files", logfile.Mode.String())
	}
}
