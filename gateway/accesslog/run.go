package accesslog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
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
	tick := time.NewTicker(l.pace)
	defer tick.Stop()
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return l.out.close()
		case <-l.deps.Reopen:
			l.flush() // what was said before belongs to the file of before
			l.complain(l.out.reopen())
		case <-l.wake:
			l.flush()
		case now := <-tick.C:
			l.flush()
			if now.Sub(looked) >= 5*l.pace {
				looked = now
				if l.out.moved() {
					l.complain(l.out.reopen())
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
	return l.out.close()
}

func (l *Log) flush() {
	full, n := l.swap(l.out.spare)
	l.out.spare = full
	if n == 0 {
		return
	}
	if taken, err := l.out.write(full); err != nil {
		whole := bytes.Count(full[:taken], []byte{'\n'})
		l.written.Add(uint64(whole))
		l.lost.Add(uint64(n - whole))
		l.complain(err)
		l.complain(l.out.reopen())
		return
	}
	l.written.Add(uint64(n))
	if l.cfg.MaxBytes > 0 && l.out.size >= l.cfg.MaxBytes {
		l.rotated.Add(1)
		l.complain(l.out.rotate())
	}
}

// complain logs what is wrong with the file, now and then.
func (l *Log) complain(err error) {
	if err == nil || l.deps.Log == nil || time.Since(l.out.complained) < complainFor {
		return
	}
	l.out.complained = time.Now()
	l.deps.Log.Error("the access log can't be written; its lines are lost and counted", "file", l.cfg.File, "error", err)
}

// output is the file.
type output struct {
	cfg        *Config
	spare      []byte // the other half of the buffer
	file       *os.File
	info       fs.FileInfo // of file
	size       int64
	torn       bool // the file ends within a line
	complained time.Time
}

// open opens the file to append; others than owner and group may not read who called.
func (o *output) open() error {
	if o.cfg.File == Stdout {
		o.file = os.Stdout
		return nil
	}
	f, err := os.OpenFile(o.cfg.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("access log: %w", err), f.Close())
	}
	if o.info == nil || !os.SameFile(info, o.info) {
		o.torn = false
	}
	o.file, o.info, o.size = f, info, info.Size()
	return nil
}

// reopen opens the file by its name again; while that fails the old one stays in use.
func (o *output) reopen() error {
	if o.cfg.File == Stdout {
		return nil
	}
	old := o.file
	if err := o.open(); err != nil {
		return err
	}
	if old == nil {
		return nil
	}
	return old.Close()
}

// moved says that the name belongs to another file now, or to none.
func (o *output) moved() bool {
	if o.cfg.File == Stdout || o.file == nil {
		return false
	}
	info, err := os.Stat(o.cfg.File)
	return err != nil || !os.SameFile(info, o.info)
}

// write appends lines. Where a disk took half of one before, they begin a line of their
// own.
func (o *output) write(b []byte) (n int, err error) {
	if o.torn {
		if _, err := o.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		o.torn = false
	}
	n, err = o.file.Write(b)
	o.size += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	o.torn = n > 0 && b[n-1] != '\n' || n == 0 && o.torn
	return n, err
}

// rotate moves the file to .1, and those of before one on.
func (o *output) rotate() error {
	name := func(i int) string { return o.cfg.File + "." + strconv.Itoa(i) }
	var errs []error
	for i := o.cfg.Keep - 1; i >= 1; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.Rename(o.cfg.File, name(1)), o.reopen())
	return errors.Join(errs...)
}

func (o *output) close() error {
	if o.cfg.File == Stdout || o.file == nil {
		return nil
	}
	f := o.file
	o.file = nil
	return f.Close()
}
