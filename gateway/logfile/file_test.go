package logfile

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, c Config) *File {
	t.Helper()
	if c.Path == "" {
		c.Path = filepath.Join(t.TempDir(), "log")
	}
	f, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func write(t *testing.T, f *File, line string) {
	t.Helper()
	if _, err := f.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// TestModes holds for the file, for those that rotation makes and for one that was there.
func TestModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0)) // the umask takes bits away, and must not be needed
	f := open(t, Config{MaxBytes: 1, Keep: 1})
	if got := mode(t, f.Path()); got != Mode || f.Wide() != 0 {
		t.Errorf("a new file has mode %v, want %v; wide is %v", got, Mode, f.Wide())
	}
	write(t, f, "a\n")
	if err := f.Rotate(); err != nil {
		t.Fatal(err)
	}
	if got := mode(t, f.Path()); got != Mode {
		t.Errorf("after rotation it has mode %v, want %v", got, Mode)
	}
	if err := os.Chmod(f.Path(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.Reopen(); err != nil {
		t.Fatal(err)
	}
	if got := mode(t, f.Path()); got != 0o644 || f.Wide() != 0o644 {
		t.Errorf("the operator's 0644 became %v; wide is %v", got, f.Wide())
	}
}

func TestRotationKeepsSoMany(t *testing.T) {
	f := open(t, Config{MaxBytes: 4, Keep: 2})
	for _, line := range []string{"one\n", "two\n", "three\n", "four\n"} {
		if f.Full() {
			if err := f.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		write(t, f, line)
	}
	files, err := filepath.Glob(f.Path() + "*")
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v, want three", files, err)
	}
	for suffix, want := range map[string]string{"": "four\n", ".1": "three\n", ".2": "two\n"} {
		if got := content(t, f.Path()+suffix); got != want {
			t.Errorf("log%s has %q, want %q", suffix, got, want)
		}
	}
}

// TestRotationOfTwoWriters: the one that comes second must not move the first one's new file.
func TestRotationOfTwoWriters(t *testing.T) {
	a := open(t, Config{MaxBytes: 4, Keep: 3})
	b := open(t, Config{Path: a.Path(), MaxBytes: 4, Keep: 3})
	write(t, a, "of a\n")
	write(t, b, "of b\n")
	for _, f := range []*File{a, b} {
		if err := f.Rotate(); err != nil {
			t.Fatal(err)
		}
		write(t, f, "new\n")
	}
	if now, first := content(t, a.Path()), content(t, a.Path()+".1"); now != "new\nnew\n" || first != "of a\nof b\n" {
		t.Errorf("now %q, .1 %q", now, first)
	}
	if _, err := os.Stat(a.Path() + ".2"); err == nil {
		t.Error("the file was moved twice")
	}
}

// TestOnlyFilesAreMovedAway: as root, /dev/null would be gone for every process.
func TestOnlyFilesAreMovedAway(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f := open(t, Config{Path: pipe, MaxBytes: 1, Keep: 1})
	write(t, f, "line\n")
	if f.Full() {
		t.Error("a pipe is full by its size")
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	g := open(t, Config{Path: link, MaxBytes: 1, Keep: 1})
	write(t, g, "line\n")
	if !g.Full() || g.Rotate() == nil {
		t.Error("a link was moved away")
	}
	if g.Full() {
		t.Error("a rotation that failed is tried again at once")
	}
	write(t, g, "next\n")
	if got := content(t, filepath.Join(dir, "target")); got != "line\nnext\n" {
		t.Errorf("the link's file has %q", got)
	}
}

// TestSharedFolder holds for the tricks of others in a folder like /tmp; a user other than
// the one of the process needs root.
func TestSharedFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of another user")
	}
	const other = 12345
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, other+1, -1); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"a link to a file of ours":           func(path string) error { return os.Symlink(victim, path) },
		"a file that the other user reads":   func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"a second name of a file of ours":    func(path string) error { return os.Link(victim, path) },
		"a link to a file that is not there": func(path string) error { return os.Symlink(victim+"-new", path) },
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		if name != "a second name of a file of ours" {
			if err := os.Lchown(path, other, -1); err != nil {
				t.Fatal(err)
			}
		}
		if f, err := Open(Config{Path: path}); err == nil {
			t.Errorf("%s was opened", name)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if got := content(t, victim); got != "secret" {
		t.Errorf("the file of ours has %q", got)
	}
	if _, err := os.Stat(victim + "-new"); err == nil {
		t.Error("a file was made where the link pointed")
	}
	own := filepath.Join(dir, "own")
	for range 2 { // made, then opened
		f, err := Open(Config{Path: own})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestReopen(t *testing.T) {
	f := open(t, Config{})
	write(t, f, "before\n")
	if f.Moved() {
		t.Error("the file is moved before it is")
	}
	if err := os.Rename(f.Path(), f.Path()+".old"); err != nil {
		t.Fatal(err)
	}
	write(t, f, "meanwhile\n")
	if !f.Moved() {
		t.Error("the file is not moved")
	}
	if err := f.Reopen(); err != nil {
		t.Fatal(err)
	}
	write(t, f, "after\n")
	if old, now := content(t, f.Path()+".old"), content(t, f.Path()); old != "before\nmeanwhile\n" || now != "after\n" {
		t.Errorf("old file: %q, new file: %q", old, now)
	}
}

// TestHalfALine: half a line that a disk took before it was full stays alone.
func TestHalfALine(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	f := Wrap(w)
	var n int
	// a busy machine begins after the deadline
	for wait := 50 * time.Millisecond; n == 0 && wait < time.Minute; wait *= 2 {
		if err := w.SetWriteDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		n, err = f.Write([]byte(strings.Repeat("0123456789\n", 20_000))) // more than a pipe holds
	}
	if err == nil || n == 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	got := make([]byte, n)
	if _, err := io.ReadFull(r, got); err != nil {
		t.Fatal(err)
	}
	if err := w.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("whole\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	want := "whole\n"
	if got[n-1] != '\n' {
		want = "\n" + want
	}
	if err != nil || string(rest) != want {
		t.Errorf("behind %q comes %q, %v", got[n-5:], rest, err)
	}
}
