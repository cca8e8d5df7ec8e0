package tracing

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// array is a JSON array in a file that grows by appending and is valid after every
// append, also when the process is killed: it appears under its name with its first
// elements, and the closing bracket is overwritten in the same write that brings the
// next ones. A kill, or a look, in the middle of one large write can find that one cut.
type array struct {
	name string
	file *os.File
	info fs.FileInfo // of file
	end  int64       // where the closing bracket is
}

// add appends elements, separated by commas; there is at least one.
func (a *array) add(elements []byte) error {
	if a.file != nil && a.moved() {
		if err := a.close(); err != nil {
			return err
		}
	}
	first := a.file == nil
	b := make([]byte, 0, len(elements)+2)
	if first {
		b = append(b, '[')
	} else {
		b = append(b, ',')
	}
	b = append(append(b, elements...), ']')
	if first {
		return a.begin(b)
	}
	n, err := a.file.WriteAt(b, a.end)
	if err != nil {
		// what was cut leaves the file as it was before
		_, back := a.file.WriteAt([]byte{']'}, a.end)
		return errors.Join(err, back, a.file.Truncate(a.end+1))
	}
	a.end += int64(n) - 1
	return nil
}

// begin makes the file with its first content, in place of one of the same name. It is the
// owner's alone: traces have the tensors of all callers.
func (a *array) begin(b []byte) error {
	if a.device() {
		return a.open(a.name, os.O_WRONLY, b) // nothing to replace
	}
	part := a.name + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.open(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, b); err != nil { // O_EXCL: nobody's link is followed
		return err
	}
	if err := os.Rename(part, a.name); err != nil {
		return errors.Join(err, a.close(), os.Remove(part))
	}
	return nil
}

// device says that the name belongs to what is no file. A link in a folder that everybody
// may write is never one: anybody may have made it.
func (a *array) device() bool {
	info, err := os.Stat(a.name)
	if err != nil || info.Mode().IsRegular() {
		return false
	}
	link, err := os.Lstat(a.name)
	if err != nil {
		return false
	}
	folder, err := os.Stat(filepath.Dir(a.name))
	return link.Mode()&fs.ModeSymlink == 0 || err == nil && folder.Mode().Perm()&0o002 == 0
}

func (a *array) open(name string, flag int, b []byte) error {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err != nil {
		err = errors.Join(err, f.Close())
		if flag&os.O_CREATE != 0 {
			err = errors.Join(err, os.Remove(name))
		}
		return err
	}
	a.file, a.info, a.end = f, info, int64(len(b))-1
	return nil
}

// moved says that the name belongs to another file now, or to none: logrotate took it, and
// what was written is whole there.
func (a *array) moved() bool {
	info, err := os.Stat(a.name)
	return err != nil || !os.SameFile(info, a.info)
}

// close closes the file, which is whole already.
func (a *array) close() error {
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// files are the trace files under one name: that of the setting itself, and numbered
// ones beside it.
type files struct {
	main array
	next int // number of the next numbered file
}

// numbered starts the next numbered file.
func (f *files) numbered() *array {
	f.next++
	return &array{name: fmt.Sprintf("%s.%d", f.main.name, f.next-1)}
}
