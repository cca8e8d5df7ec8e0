package repository

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// maxFiles and maxDepth bound the walk through one model folder.
const (
	maxFiles = 200_000
	maxDepth = 16
)

var errManyFiles = infer.Errorf(infer.InvalidArg, "the model folder holds more than %d files", maxFiles)

// file is what a look knows of a file: whoever replaces it, or writes to it, changes
// one of these.
type file struct {
	size, modified int64 // bytes, nanoseconds
	inode          uint64
}

// look is a model folder as it was at one moment: its files by their slashed paths.
// Folders count through what they hold, since loading a model may add caches beside it.
type look struct {
	files map[string]file
	// newest is when a file was last written, renamed or replaced, by the file system's
	// own clock, which nobody can set back.
	newest time.Time
	left   int // files and folders that may follow; those behind links count each time
}

// lookAt walks through a model folder. Links are followed; what a Python interpreter
// leaves (__pycache__) and names that begin with a dot are not part of a model. With an
// error the look is of that error: it is the same as long as the error is.
func lookAt(dir string) (look, error) {
	return lookUpTo(dir, maxFiles)
}

// lookUpTo is lookAt for so many files and folders.
func lookUpTo(dir string, most int) (look, error) {
	l := look{files: map[string]file{}, left: most}
	if err := l.walk(dir, "", 0); err != nil {
		return look{files: map[string]file{err.Error(): {}}}, err
	}
	return l, nil
}

func (l *look) walk(dir, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folders are nested deeper than %d: '%s'", maxDepth, prefix)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return plain(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "__pycache__" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			l.files[prefix+e.Name()] = file{size: -1} // a link to nowhere, or gone meanwhile
			continue
		}
		if l.left--; l.left < 0 { // links to folders that hold links multiply
			return errManyFiles
		}
		if info.IsDir() {
			if err := l.walk(filepath.Join(dir, e.Name()), prefix+e.Name()+"/", depth+1); err != nil {
				return err
			}
			l.files[prefix+e.Name()+"/"] = file{}
			continue
		}
		l.add(prefix+e.Name(), info)
	}
	return nil
}

func (l *look) add(name string, info fs.FileInfo) {
	f := file{size: info.Size(), modified: info.ModTime().UnixNano()}
	changed := info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.inode = st.Ino
		changed = time.Unix(st.Ctim.Unix())
	}
	if changed.After(l.newest) {
		l.newest = changed
	}
	l.files[name] = f
}

// same says that two looks saw the same files.
func (l look) same(o look) bool { return maps.Equal(l.files, o.files) }

// part are the files of one version (its number and a slash in front), or with "" those
// that belong to none and are no config.
func (l look) part(prefix string) map[string]file {
	some := map[string]file{}
	for name, f := range l.files {
		if prefix != "" {
			if strings.HasPrefix(name, prefix) {
				some[name] = f
			}
			continue
		}
		top, _, folder := strings.Cut(name, "/")
		_, version := ParseVersion(top)
		if !(folder && version) && name != ConfigFile && top != configFolder {
			some[name] = f
		}
	}
	return some
}

// sameVersion says that the files of a version, and those of no version, are the same.
func (l look) sameVersion(o look, version int64) bool {
	prefix := strconv.FormatInt(version, 10) + "/"
	return maps.Equal(l.part(prefix), o.part(prefix)) && maps.Equal(l.part(""), o.part(""))
}

// torn says that a file of the first look is gone or another one in the second: what
// was read between them may be half of each. Files that were added tear nothing.
func (l look) torn(later look) bool {
	for name, f := range l.files {
		if g, ok := later.files[name]; !ok || f != g {
			return true
		}
	}
	return false
}
