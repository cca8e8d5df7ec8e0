package python

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed all:runner
var runnerFiles embed.FS

// layRunner lays the runner's source down under root, in a folder that is named by the source's
// hash and is nobody else's, and returns the folder. One that is there is taken if every file
// of it is as it should be.
func layRunner(root string) (string, error) {
	files, err := runnerSource()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %d\n%s", f.name, len(f.data), f.data)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(root, "runner-"+hex.EncodeToString(sum.Sum(nil)[:16]))
	if checkRunner(dir, files) == nil {
		return dir, nil
	}
	made, err := os.MkdirTemp(root, ".runner-")
	if err != nil {
		return "", err
	}
	err = writeRunner(made, files)
	if err == nil {
		err = putRunner(made, dir)
	}
	if err == nil || errors.Is(err, fs.ErrExist) { // another worker was faster
		err = checkRunner(dir, files)
	}
	return dir, errors.Join(err, os.RemoveAll(made))
}

// putRunner renames made to dir, whose place something else may have.
func putRunner(made, dir string) error {
	err := os.Rename(made, dir)
	if err == nil || !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	old := made + ".old"
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Rename(made, dir), os.RemoveAll(old))
}

// sourceFile is a file of the runner.
type sourceFile struct {
	name string // relative, with slashes
	data []byte
}

// runnerSource is the embedded source, in the order of its names.
func runnerSource() ([]sourceFile, error) {
	var files []sourceFile
	err := fs.WalkDir(runnerFiles, "runner", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "__pycache__" || e.Name() == "tests"):
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		data, err := runnerFiles.ReadFile(path)
		files = append(files, sourceFile{strings.TrimPrefix(path, "runner/"), data})
		return err
	})
	return files, err
}

func writeRunner(dir string, files []sourceFile) error {
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// checkRunner says what is wrong with a folder that should have these files and no others.
func checkRunner(dir string, files []sourceFile) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || st.Mode().Perm() != 0o700 || !ok ||
		int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is no folder of this user's alone", dir)
	}
	want := map[string][]byte{}
	for _, f := range files {
		want[f.name] = f.data
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == "__pycache__":
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		data, err := os.ReadFile(path)
		if wanted, ok := want[name]; err == nil && (!ok || !e.Type().IsRegular() || !bytes.Equal(data, wanted)) {
			err = fmt.Errorf("%s is not what was laid down", path)
		}
		delete(want, name)
		return err
	})
	if err == nil && len(want) > 0 {
		err = fmt.Errorf("%s lacks %d files", dir, len(want))
	}
	return err
}
