package configfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trial is a Follower with a clock of the test's. Its configuration is a file "main", whose lines name further files;
// the value joins the contents of all.
type trial struct {
	t   *testing.T
	dir string
	now time.Time
	f   *Follower[string]
	is  string
}

func newTrial(t *testing.T, files map[string]string) *trial {
	t.Helper()
	x := &trial{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0)}
	for name, text := range files {
		x.write(name, text)
	}
	var err error
	if x.f, x.is, err = Open(64, x.now, x.load); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *trial) load(r *Reading) (string, error) {
	data, err := r.File(filepath.Join(x.dir, "main"))
	if err != nil {
		return "", err
	}
	all := ""
	for _, name := range strings.Fields(string(data)) {
		data, err := r.File(filepath.Join(x.dir, name))
		if err != nil {
			return "", err
		}
		all += name + "=" + strings.TrimSpace(string(data)) + " "
	}
	if strings.Contains(all, "bad") {
		return "", errors.New("bad content")
	}
	return all, nil
}

func (x *trial) write(name, text string) {
	x.t.Helper()
	part := filepath.Join(x.dir, "part")
	err := os.WriteFile(part, []byte(text), 0o600)
	if err := errors.Join(err, os.Rename(part, filepath.Join(x.dir, name))); err != nil {
		x.t.Fatal(err)
	}
}

// look looks after d and wants a result.
func (x *trial) look(name string, d time.Duration, want Result, is string) {
	x.t.Helper()
	x.now = x.now.Add(d)
	value, got, err := x.f.Look(x.now)
	if got == Changed {
		x.is = value
	}
	if got != want || (err != nil) != (want == Failed) || x.is != is {
		x.t.Errorf("%s: result %d, %v, in force is %q; want %d and %q", name, got, err, x.is, want, is)
	}
}

func TestTwoLooks(t *testing.T) {
	x := newTrial(t, map[string]string{"main": "a\n", "a": "1\n"})
	x.look("at first", Period, Unchanged, "a=1 ")
	x.write("a", "2\n")
	x.look("changed", Period, Unchanged, "a=1 ")
	x.look("too early", Period/2, Unchanged, "a=1 ")
	x.write("a", "3\n")
	x.look("changed meanwhile", Period/2, Unchanged, "a=1 ")
	x.look("too early again", Period/2, Unchanged, "a=1 ")
	x.look("settled", Period/2, Changed, "a=3 ")
	x.look("after it", Period, Unchanged, "a=3 ")
}

// TestSameStamp: a content that changes within the resolution of the file system's clock is seen by its bytes.
func TestSameStamp(t *testing.T) {
	x := newTrial(t, map[string]string{"main": "a\n", "a": "1\n"})
	x.write("a", "2\n")
	x.look("changed", Period, Unchanged, "a=1 ")
	one := x.f.files[filepath.Join(x.dir, "a")]
	one.data = []byte("4\n") // as if it had been another one at the last look, with the same times
	x.look("other bytes", Period, Unchanged, "a=1 ")
	x.look("settled", Period, Changed, "a=2 ")
}

// TestFileThatIsNamed: a file that a change names for the first time has to settle too, and one that is not named any more
// holds nothing up.
func TestFileThatIsNamed(t *testing.T) {
	x := newTrial(t, map[string]string{"main": "a\n", "a": "1\n", "b": "1\n"})
	x.write("main", "a b\n")
	x.look("names another", Period, Unchanged, "a=1 ")
	x.look("which is looked at for the first time", Period, Unchanged, "a=1 ")
	x.write("b", "2\n")
	x.look("and is being written", Period, Unchanged, "a=1 ")
	x.look("settled", Period, Changed, "a=1 b=2 ")
	x.write("main", "a b c\n")
	x.write("c", "1\n")
	for i := range 4 {
		x.look("a file that never settles", Period, Unchanged, "a=1 b=2 ")
		x.write("c", fmt.Sprint(i, "\n"))
	}
	x.write("main", "a\n")
	x.look("and is not named any more", Period, Unchanged, "a=1 b=2 ")
	x.write("c", "5\n")
	x.look("settled without it", Period, Changed, "a=1 ")
}

func TestFaultsAreToldOnce(t *testing.T) {
	x := newTrial(t, map[string]string{"main": "a\n", "a": "1\n"})
	x.write("a", "bad\n")
	x.look("bad", Period, Unchanged, "a=1 ")
	x.look("bad, settled", Period, Failed, "a=1 ")
	x.look("still bad", Period, Unchanged, "a=1 ")
	x.write("a", "bad too\n")
	x.look("bad again", Period, Unchanged, "a=1 ")
	x.look("the same fault", Period, Unchanged, "a=1 ")
	x.write("a", "1\n")
	x.look("mended", Period, Unchanged, "a=1 ")
	x.look("mended, settled", Period, Restored, "a=1 ")
	x.write("a", "1\n")
	x.look("the same again", Period, Unchanged, "a=1 ")
	x.look("the same, settled", Period, Unchanged, "a=1 ")
	x.write("main", "a nowhere\n")
	x.look("names a file that is not there", Period, Unchanged, "a=1 ")
	x.look("which is looked at", Period, Unchanged, "a=1 ")
	x.look("twice", Period, Failed, "a=1 ")
	x.write("nowhere", "2\n")
	x.look("it comes", Period, Unchanged, "a=1 ")
	x.look("it settles", Period, Changed, "a=1 nowhere=2 ")
}

// TestFilesThatAreNone: a pipe, a folder and a large file are errors, and nobody waits for a writer.
func TestFilesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, 65), 0o600); err != nil {
		t.Fatal(err)
	}
	const none = "not a regular file"
	for name, want := range map[string]string{pipe: none, dir: none, large: "more than 64 bytes"} {
		if _, err := Read(name, 64); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestDocument(t *testing.T) {
	for text, empty := range map[string]bool{"": true, " \n": true, "# a\n": true, "{}": true, "null": true, "~": true,
		"---\n": true, "a:\nb: ~\n": true, "a: []": false, "a: {}": false, "a: ''": false, "a:\nb: 1\n": false,
		"[": false, "- 1": false, "text": false} {
		err := Document([]byte(text), "rules")
		if errors.Is(err, ErrEmpty) != empty || empty && !strings.Contains(err.Error(), "write 'rules: []' if that is meant") {
			t.Errorf("%q: %v, want empty %v", text, err, empty)
		}
	}
}

func TestLost(t *testing.T) {
	const old = "list: [1]\nmapping: {a: 1}\ntext: x\nnone:\nempty: []\nvoid: {}\nblank: ''\n"
	for _, c := range []struct{ name, text, want string }{
		{"all there", old, ""},
		{"others", "list: [2, 3]\nmapping: {b: 1}\ntext: y\nmore: 1\n", ""},
		{"gone", "more: 1\n", "'list: []' 'mapping: {}' 'text' with its default, or \"\" for none"},
		{"null", "list:\nmapping: {a: 1}\ntext: x\n", "'list: []'"},
		{"in words", "list: []\nmapping: {}\ntext: ''\n", ""},
	} {
		if got := strings.Join(lost([]byte(old), []byte(c.text)), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCut(t *testing.T) {
	const old = "first line\nsecond line\n"
	for text, want := range map[string]bool{old: false, "first line\nsecond line": false, "first line\nsecond li": true,
		"first line\n": false, "first line": false, "fi": true, "fo": false, "": false, old + "more": false} {
		if cut([]byte(old), []byte(text)) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}
