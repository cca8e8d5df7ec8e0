package tracing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// contents of the files in a folder by name.
func contents(t *testing.T, folder string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

// TestFilesAreTheOwnersAlone: traces have the tensors of all callers, at level TENSORS.
func TestFilesAreTheOwnersAlone(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	numbered := on()
	numbered.LogFrequency = 1
	for name, s := range map[string]Settings{"one file": on(), "numbered": numbered} {
		s.File = filepath.Join(t.TempDir(), "t.json")
		for _, wide := range []string{s.File, s.File + ".0"} { // what another server left
			if err := os.WriteFile(wide, []byte("[]"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		r := start(t, s)
		r.request("m", "first")
		r.stop()
		written := s.File
		if s.LogFrequency > 0 {
			written += ".0"
		}
		info, err := os.Stat(written)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 || info.Size() < 10 {
			t.Errorf("%s: %d bytes with mode %v, want 0600", name, info.Size(), info.Mode().Perm())
		}
	}
}

// TestPlantedFiles: others may make files in a folder like /tmp, and know the names there.
func TestPlantedFiles(t *testing.T) {
	folder, victims := t.TempDir(), t.TempDir()
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	s := on()
	s.File = filepath.Join(folder, "t.json")
	victim, pipe := filepath.Join(victims, "victim"), filepath.Join(victims, "pipe")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil { // opening it to write would wait without end
		t.Fatal(err)
	}
	for link, to := range map[string]string{s.File: pipe, s.File + ".part": victim} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, s)
	r.request("m", "first")
	r.stop()
	if b, err := os.ReadFile(victim); err != nil || string(b) != "secret" {
		t.Errorf("a file of ours that a link named has %q, %v", b, err)
	}
	if got := contents(t, folder); len(got) != 1 || !strings.Contains(got["t.json"], `"m"`) {
		t.Errorf("the folder has %q", got)
	}
}

// TestFileThatIsMovedAway: logrotate needs no signal, and takes nothing away.
func TestFileThatIsMovedAway(t *testing.T) {
	s := on()
	s.File = filepath.Join(t.TempDir(), "t.json")
	r := start(t, s)
	r.request("before", "first")
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if _, err := os.Stat(s.File); err == nil {
			break
		}
	}
	if err := os.Rename(s.File, s.File+".old"); err != nil {
		t.Fatal(err)
	}
	r.request("after", "second")
	r.stop()
	got := contents(t, filepath.Dir(s.File))
	for name, want := range map[string]string{"t.json.old": `"before"`, "t.json": `"after"`} {
		text := got[name]
		if !strings.Contains(text, want) || strings.Count(text, `"model_name"`) != 1 || !strings.HasSuffix(text, "]") {
			t.Errorf("%s has %q, want the trace of %s alone", name, text, want)
		}
	}
}
