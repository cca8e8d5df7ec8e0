package pyenv

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// entry is a file of an archive.
type entry struct {
	name, body, link string
	kind             byte
	mode             int64
}

// pack writes an archive.
func pack(t *testing.T, name string, entries ...entry) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o755
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.body))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	if strings.HasSuffix(name, ".zst") {
		e, err := zstd.NewWriter(&z)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = e.Write(b.Bytes())
		_ = e.Close()
	} else {
		e := gzip.NewWriter(&z)
		_, _ = e.Write(b.Bytes())
		_ = e.Close()
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

// interpreter is a program that answers a probe.
func interpreter(answer string) entry {
	return entry{name: "bin/python", body: "#!/bin/sh\necho '" + answer + "'\n"}
}

const suits = `{"major": 3, "minor": 12, "numpy": true}`

func TestArchives(t *testing.T) {
	for _, name := range []string{"env.tar.gz", "env.tar.zst"} {
		cache, model := t.TempDir(), t.TempDir()
		archive := pack(t, name, interpreter(suits), entry{name: "bin/python3", kind: tar.TypeSymlink, link: "python"},
			entry{name: "bin/activate", body: "export FROM_ENV=yes\n"},
			entry{name: "bin/conda-unpack", body: "x"})
		if err := os.Rename(archive, filepath.Join(model, name)); err != nil {
			t.Fatal(err)
		}
		q := Request{Env: ModelDirectory + "/" + name, ModelDir: model, VersionDir: filepath.Join(model, "1"),
			Cache: cache}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				e, err := Resolve(limited(t), q, os.Environ())
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				if !strings.HasPrefix(e.Interpreter, cache) || len(e.Variables) != 1 ||
					e.Variables[0] != "FROM_ENV=yes" {
					t.Errorf("%s: %+v", name, e)
				}
			})
		}
		wg.Wait()
		if left, err := filepath.Glob(filepath.Join(cache, "envs", "*.new")); err != nil || len(left) > 0 {
			t.Errorf("%s: %v stays, %v", name, left, err)
		}
	}
}

// An archive that was changed is unpacked again, one that was only copied is not.
func TestContentCounts(t *testing.T) {
	cache := t.TempDir()
	one, two := pack(t, "a.tar.gz", interpreter(suits)), pack(t, "b.tar.gz", interpreter(suits))
	three := pack(t, "c.tar.gz", interpreter(suits), entry{name: "more"})
	var folders []string
	for _, archive := range []string{one, two, three} {
		folder, err := unpacked(limited(t), archive, cache, nil)
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	if folders[0] != folders[1] || folders[0] == folders[2] {
		t.Errorf("%q", folders)
	}
}

func TestHostileArchives(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	reasons := map[string]string{"absolute": "Path is absolute", "dots": "Path contains '..'"}
	for name, entries := range map[string][]entry{
		"absolute":      {{name: outside, body: "x"}},
		"dots":          {{name: "a/../../outside", body: "x"}},
		"link out":      {{name: "l", kind: tar.TypeSymlink, link: "../.."}},
		"absolute link": {{name: "l", kind: tar.TypeSymlink, link: "/etc"}},
		"through links": {{name: "a/b", kind: tar.TypeSymlink, link: ".."}, {name: "a/b/b", kind: tar.TypeSymlink,
			link: "../.."}},
		"link by way of another": {{name: "a/b/s", kind: tar.TypeSymlink, link: "../.."}, {name: "t", kind: tar.TypeSymlink, link: "a/b/s/../."}},
		"hard link out":          {{name: "l", kind: tar.TypeLink, link: "../../etc/passwd"}},
		"device":                 {{name: "d", kind: tar.TypeChar}},
		"fifo":                   {{name: "f", kind: tar.TypeFifo}},
		"twice":                  {{name: "a", body: "x"}, {name: "a", body: "y"}},
		"over a link":            {{name: "l", kind: tar.TypeSymlink, link: "target"}, {name: "l", body: "x"}},
	} {
		cache := t.TempDir()
		folder, err := unpacked(limited(t), pack(t, "env.tar.gz", entries...), cache, nil)
		if err == nil {
			t.Errorf("%s: taken into %s", name, folder)
		} else if text := reasons[name]; !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %q, want %q", name, err, text)
		}
		if left, err := filepath.Glob(filepath.Join(cache, "envs", "[0-9a-f]*[0-9a-f]")); err != nil || len(left) > 0 {
			t.Errorf("%s: %v stays, %v", name, left, err)
		}
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("a file was written outside")
	}
}

func TestNoSetuid(t *testing.T) {
	folder, err := unpacked(limited(t), pack(t, "env.tar.gz", entry{name: "f", body: "x", mode: 0o6755}), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(folder, "f"))
	if err != nil || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestRefusedInterpreters(t *testing.T) {
	for _, c := range []struct{ answer, want string }{
		{`{"major": 3, "minor": 8, "numpy": true}`, "is version 3.8, models need 3.9 or newer"},
		{`{"major": 2, "minor": 7, "numpy": true}`, "is version 2.7"},
		{`{"major": 3, "minor": 12, "numpy": false}`, "has no numpy"},
		{`nothing`, "does not work"},
	} {
		program := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(program, []byte(interpreter(c.answer).body), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Resolve(limited(t), Request{Python: program, ModelDir: t.TempDir(), Cache: t.TempDir()}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.answer, err)
		}
	}
	for _, q := range []Request{{Python: "/nowhere/python"}, {Python: "3.1"}, {Env: "/nowhere"}, {Env: t.TempDir()}} {
		q.ModelDir, q.Cache = t.TempDir(), t.TempDir()
		if e, err := Resolve(limited(t), q, nil); err == nil {
			t.Errorf("%+v: %+v", q, e)
		}
	}
}

// A real environment: a folder that venv made, and requirements that pip installs without a network.
func TestRealEnvironment(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	model := t.TempDir()
	file := filepath.Join(model, "requirements.txt")
	if err := os.WriteFile(file, []byte("# nothing to install\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := Request{Default: python, ModelDir: model, VersionDir: model, Cache: t.TempDir()}
	e := &Environment{Interpreter: python}
	if err := q.requirements(limited(t), e, os.Environ()); err != nil || len(e.Warnings) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	q.Install = true
	e = &Environment{Interpreter: python}
	if err := q.requirements(limited(t), e, os.Environ()); err != nil || !strings.Contains(e.Interpreter, "requirements-") {
		t.Fatalf("%+v, %v", e, err)
	}
	if _, err := Run(limited(t), time.Minute, os.Environ(), e.Interpreter, "-c",
		"import sys; assert sys.prefix != sys.base_prefix"); err != nil {
		t.Error(err)
	}
}

// A cache folder that others may write to is not trusted.
func TestForeignCache(t *testing.T) {
	cache := t.TempDir()
	envs := filepath.Join(cache, "envs")
	if err := errors.Join(os.Mkdir(envs, 0o700), os.Chmod(envs, 0o777)); err != nil {
		t.Fatal(err)
	}
	archive := pack(t, "env.tar.gz", interpreter(suits))
	if folder, err := unpacked(limited(t), archive, cache, nil); err == nil {
		t.Errorf("unpacked into %s", folder)
	}
}

// What the worker keeps to itself does not reach a model by its environment's activate.
func TestActivateSeesNoSecrets(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hidden")
	folder, err := unpacked(limited(t), pack(t, "env.tar.gz", entry{name: "bin/activate", body: "export SEEN=x$AWS_SECRET_ACCESS_KEY\n"}), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := activate(limited(t), folder, []string{"PATH=" + os.Getenv("PATH")})
	if err != nil || len(got) != 1 || got[0] != "SEEN=x" {
		t.Errorf("%q, %v", got, err)
	}
}

// What a program has started ends with it at the limit.
func TestLimitEndsTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	_, err := Run(limited(t), 200*time.Millisecond, os.Environ(), "bash", "-c", "sleep 300 & echo $! >"+file+"; wait")
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Skip("it did not get so far")
	}
	for end := time.Now().Add(30 * time.Second); ; {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
		if err != nil || strings.Contains(string(status), "State:\tZ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %s lives on", pid)
		}
		runtime.Gosched()
	}
}
