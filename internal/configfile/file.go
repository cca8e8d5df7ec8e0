package configfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrEmpty is the error of a file that says nothing. Errors that wrap it say how to say nothing in words, where there is
// a way.
var ErrEmpty = errors.New("the file says nothing")

// errNotRegular is the error of a folder, a pipe or a device.
var errNotRegular = errors.New("it is not a regular file")

// Read reads a regular file of at most limit bytes. An error names the file.
func Read(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name) // before it is opened, which would wait for the writer of a pipe
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", name, errNotRegular)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes, which is the most", name, limit)
	}
	return data, nil
}

// stamp tells a file from another one, behind all symbolic links; the zero value is of no file.
type stamp struct {
	modified, changed int64 // Unix nanoseconds
	size              int64
	device, inode     uint64
}

func stampOf(name string) (s stamp) {
	info, err := os.Stat(name)
	if err != nil {
		return stamp{} // reading the file says why
	}
	s = stamp{modified: info.ModTime().UnixNano(), size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.changed, s.device, s.inode = st.Ctim.Nano(), st.Dev, st.Ino
	}
	return s
}
