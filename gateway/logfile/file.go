// Package logfile appends lines to a file: the server's log and the access log, which
// keep one File each. It holds what both need: permissions, opening by name again for
// logrotate, moving a full file away, and lines that are never joined after a disk took
// half of one.
//
// A File has no lock and no goroutine: whoever owns it writes, reopens and rotates one at
// a time.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is the permissions of files that are made here, as far as the umask leaves them:
// others than owner and group may not read who called, and with what.
const Mode fs.FileMode = 0o640

// retryAfter is the pause after a rotation that failed.
const retryAfter = time.Minute

// Config says where lines go.
type Config struct {
	Path string
	// MaxBytes is the size from which Full asks for Rotate; 0: never.
	MaxBytes int64
	Keep     int // files that Rotate leaves as Path.1 (the newest) to Path.Keep; ≥ 1 where MaxBytes is set
}

// File is one open file of lines.
type File struct {
	cfg   Config
	file  *os.File
	info  fs.FileInfo // of file; nil: of Wrap, which has no name to open again
	size  int64
	torn  bool // the file ends within a line
	retry time.Time
}

// Open opens the file to append, or makes it with Mode.
func Open(c Config) (*File, error) {
	f := &File{cfg: c}
	return f, f.open()
}

// Wrap is a File that has no name: standard output, or a pipe. Close leaves it open.
func Wrap(file *os.File) *File { return &File{file: file} }

// Path is the file's name; "" of Wrap.
func (f *File) Path() string { return f.cfg.Path }

func (f *File) open() error {
	file, err := openAppend(f.cfg.Path)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if f.info == nil || !os.SameFile(info, f.info) {
		f.torn = false
	}
	f.file, f.info, f.size = file, info, info.Size()
	return nil
}

// openAppend opens a log by its name. In a folder that everybody may write, such as /tmp,
// it refuses what another user may have put there to read the log, or to have it written
// into a file of his choice.
// Source: the rules of fs.protected_symlinks, protected_regular and protected_hardlinks
// (sysctl of Linux), which not every host has on.
func openAppend(path string) (*os.File, error) {
	const flags = os.O_APPEND | os.O_CREATE | os.O_WRONLY
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if folder.Mode().Perm()&0o002 == 0 {
		return os.OpenFile(path, flags, Mode)
	}
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, Mode)
	if errors.Is(err, unix.ELOOP) {
		link, err := os.Lstat(path)
		if err != nil {
			return nil, err
		}
		if !trusted(link, folder) {
			return nil, fmt.Errorf("%s is a link of another user, in a folder that everybody may write", path)
		}
		return os.OpenFile(path, flags, Mode)
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().IsRegular() && (!trusted(info, folder) || ok && st.Nlink > 1) {
		err := fmt.Errorf("%s belongs to another user or has a second name, in a folder that everybody may write", path)
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// trusted says that a file is this process's user's, or of the owner of its folder.
func trusted(info, folder fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	of, known := folder.Sys().(*syscall.Stat_t)
	return ok && known && (int(st.Uid) == os.Geteuid() || st.Uid == of.Uid)
}

// Wide is the permissions of a file that was there before and gives others more than
// Mode; 0 where it does not. They stay as they are: the operator may have meant them.
func (f *File) Wide() fs.FileMode {
	if f.info == nil || !f.info.Mode().IsRegular() || f.info.Mode().Perm()&^Mode&0o077 == 0 {
		return 0
	}
	return f.info.Mode().Perm()
}

// Write appends whole lines by one write. Where a disk took half of the ones before, they
// begin a line of their own.
func (f *File) Write(b []byte) (n int, err error) {
	if f.torn {
		if _, err := f.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		f.size++
		f.torn = false
	}
	n, err = f.file.Write(b)
	f.size += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	f.torn = n > 0 && b[n-1] != '\n' || n == 0 && f.torn
	return n, err
}

// Full says that Rotate is due. After one that failed it is so again in a minute.
func (f *File) Full() bool {
	return f.info != nil && f.cfg.MaxBytes > 0 && f.size >= f.cfg.MaxBytes && f.info.Mode().IsRegular() &&
		!time.Now().Before(f.retry)
}

// Rotate moves the file to Path.1, those of before one on, and opens a new one. A name
// that is a link, or that another process moved already, is left alone. On an error the
// lines go on into the file of before, if no other could be opened.
func (f *File) Rotate() error {
	err := f.rotate()
	if err != nil {
		f.retry = time.Now().Add(retryAfter)
	}
	return err
}

func (f *File) rotate() error {
	info, err := os.Lstat(f.cfg.Path)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is a link, which is not moved away for its size", f.cfg.Path)
	}
	if err != nil || !os.SameFile(info, f.info) {
		return f.Reopen()
	}
	name := func(i int) string { return f.cfg.Path + "." + strconv.Itoa(i) }
	var errs []error
	for i := f.cfg.Keep - 1; i >= 1; i-- {
		if err := os.Rename(name(i), name(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.Rename(f.cfg.Path, name(1)), f.Reopen())...)
}

// Reopen opens the file by its name again; while that fails the old one stays in use.
func (f *File) Reopen() error {
	if f.cfg.Path == "" {
		return nil
	}
	old := f.file
	if err := f.open(); err != nil {
		return err
	}
	if old == nil {
		return nil
	}
	return old.Close()
}

// Moved says that the name belongs to another file now, or to none.
func (f *File) Moved() bool {
	if f.info == nil || f.file == nil {
		return false
	}
	info, err := os.Stat(f.cfg.Path)
	return err != nil || !os.SameFile(info, f.info)
}

// Close closes the file. Further calls do nothing.
func (f *File) Close() error {
	if f.info == nil || f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}
