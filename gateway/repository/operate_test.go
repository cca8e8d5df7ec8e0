package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// explicit makes a repository of those files that loads by calls alone.
func explicit(t *testing.T, w *fakeWorkers, cfg Config, files map[string]string) (*Repository, string) {
	t.Helper()
	dir := write(t, t.TempDir(), files)
	cfg.Paths, cfg.Mode, cfg.TempDir, cfg.StrictReadiness = append(cfg.Paths, dir), Explicit, t.TempDir(), true
	r := New(cfg, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for key, l := range w.loaded {
			if n := l.unloaded.Load(); n != 1 {
				t.Errorf("the last load of %s was freed %d times", key, n)
			}
		}
	})
	return r, dir
}

// loaded lists what the workers were told to load since the last call.
func (w *fakeWorkers) since() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, s := range w.loads {
		text := fmt.Sprintf("%s/%d", s.Name, s.Version)
		if s.Like != nil {
			text += " like"
		}
		all = append(all, fmt.Sprintf("%s %d", text, len(s.Instances)))
	}
	w.loads = nil
	return strings.Join(all, ", ")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func fails(t *testing.T, err error, code infer.Code, text string) {
	t.Helper()
	if err == nil || infer.CodeOf(err) != code || err.Error() != text {
		t.Errorf("got %v, want %v: %s", err, code, text)
	}
}

const policy = identity + "version_policy { "

func TestLoadBuildsOnlyWhatChanged(t *testing.T) {
	w := &fakeWorkers{}
	r, dir := explicit(t, w, Config{}, map[string]string{"m/config.pbtxt": policy + "all {} }", "m/1/w": "1", "m/2/w": "2"})
	if got := index(r); got != "m - \n" {
		t.Errorf("at the start: %q", got)
	}
	for _, step := range []struct {
		name  string
		files map[string]string
		loads string
		index string
	}{
		{"first", nil, "m/1 2, m/2 2", "m 1 READY\nm 2 READY\n"},
		{"unchanged", nil, "", "m 1 READY\nm 2 READY\n"},
		{"a comment in the config", map[string]string{"m/config.pbtxt": policy + "all {} } # x"}, "", "m 1 READY\nm 2 READY\n"},
		{"one version's file", map[string]string{"m/2/w": "two"}, "m/2 2", "m 1 READY\nm 2 READY\n"},
		{"a new version", map[string]string{"m/3/w": "3"}, "m/3 2", "m 1 READY\nm 2 READY\nm 3 READY\n"},
		{"another policy", map[string]string{"m/config.pbtxt": policy + "specific { versions: [ 2, 9 ] } }"}, "",
			"m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 UNAVAILABLE: unloaded\n"},
		{"another number of instances", map[string]string{"m/config.pbtxt": strings.Replace(policy, "count: 2", "count: 5", 1) + "specific { versions: [ 2 ] } }"},
			"m/2 like 5", "m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 UNAVAILABLE: unloaded\n"},
		{"instances and policy", map[string]string{"m/config.pbtxt": policy + "specific { versions: [ 2, 3 ] } }"}, "m/2 like 2, m/3 2",
			"m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 READY\n"},
		{"the config", map[string]string{"m/config.pbtxt": strings.Replace(policy, "size: 8", "size: 9", 1) + "specific { versions: [ 2 ] } }"}, "m/2 2",
			"m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 UNAVAILABLE: unloaded\n"},
		{"a file of no version", map[string]string{"m/labels.txt": "x"}, "m/2 2", "m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 UNAVAILABLE: unloaded\n"},
		{"what is no part of it", map[string]string{"m/.git/x": "x", "m/2/__pycache__/x.pyc": "x", "m/7/": ""}, "", "m 1 UNAVAILABLE: unloaded\nm 2 READY\nm 3 UNAVAILABLE: unloaded\n"},
	} {
		write(t, dir, step.files)
		if err := r.Load(t.Context(), "m", &Override{}); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		sorted := strings.Split(w.since(), ", ")
		if strings.Join(sorted, ", ") != step.loads && strings.Join(reversed(sorted), ", ") != step.loads {
			t.Errorf("%s: loaded %q, want %q", step.name, sorted, step.loads)
		}
		eventually(t, step.name+": "+step.index+"; it is "+index(r), func() bool { return index(r) == step.index })
		if !r.Ready() {
			t.Errorf("%s: not ready", step.name)
		}
	}
}

func reversed(s []string) []string {
	out := make([]string, len(s))
	for i, v := range s {
		out[len(s)-1-i] = v
	}
	return out
}

// A load that fails changes nothing but what the index says.
func TestFailedLoads(t *testing.T) {
	w := &fakeWorkers{}
	r, dir := explicit(t, w, Config{}, map[string]string{"m/config.pbtxt": policy + "all {} }", "m/1/w": "1", "m/2/w": "2", "none/config.pbtxt": identity,
		"text/config.pbtxt": "max_batchsize: 2", "text/1/": ""})
	load := func(name string) error { return r.Load(t.Context(), name, &Override{}) }
	fails(t, load("nope"), infer.Internal, "failed to load 'nope', failed to poll from model repository")
	fails(t, load(""), infer.Internal, "failed to load '', failed to poll from model repository")
	fails(t, load("../m"), infer.Internal, "failed to load '../m', failed to poll from model repository")
	fails(t, load("none"), infer.InvalidArg, "load failed for model 'none': at least one version must be available under the version policy of model 'none'\n")
	if err := load("text"); infer.CodeOf(err) != infer.Internal || !strings.HasPrefix(err.Error(), "failed to load 'text', failed to poll from model repository: text/config.pbtxt:1:1: ") {
		t.Errorf("got %v", err)
	}
	if r.Ready() {
		t.Error("ready, though models failed to load")
	}
	for _, name := range []string{"none", "text"} {
		if err := r.Unload(t.Context(), name, false); err != nil || !strings.Contains(index(r), name+" - \n") {
			t.Errorf("%s is not forgotten: %v, %s", name, err, index(r))
		}
	}
	if err := load("m"); err != nil || !r.Ready() {
		t.Fatal(err)
	}
	w.fail = func(spec LoadSpec, _ int) error {
		if spec.Version == 2 || spec.Version == 3 {
			return infer.Errorf(infer.Internal, "broken")
		}
		return nil
	}
	before, _ := r.Acquire(t.Context(), "m", "1")
	before.Release()
	write(t, dir, map[string]string{"m/1/w": "one", "m/2/w": "two", "m/3/w": "three", "m/4/w": "four"})
	fails(t, load("m"), infer.InvalidArg, "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: broken;version 3 is at UNAVAILABLE state: Internal: broken;\n")
	after, err := r.Acquire(t.Context(), "m", "1")
	if err != nil || after != before {
		t.Errorf("version 1 is not what it was: %v", err)
	}
	after.Release()
	want := "m 1 READY\nm 2 READY: Internal: broken\nm 3 UNAVAILABLE: Internal: broken\nnone - \ntext - \n"
	if got := index(r); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	write(t, dir, map[string]string{"m/config.pbtxt": "nonsense"})
	if err := load("m"); err == nil {
		t.Error("a broken config was loaded")
	}
	if ok, err := r.ModelReady("m", "2"); !ok || err != nil {
		t.Errorf("after a broken config: %v, %v", ok, err)
	}
	w.fail = nil
	write(t, dir, map[string]string{"m/config.pbtxt": policy + "all {} }"})
	if err := load("m"); err != nil || index(r) != "m 1 READY\nm 2 READY\nm 3 READY\nm 4 READY\nnone - \ntext - \n" || !r.Ready() {
		t.Errorf("repaired: %v, %s", err, index(r))
	}
}

func TestModes(t *testing.T) {
	for _, mode := range []Mode{None, Poll} {
		dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
		r := New(Config{Paths: []string{dir}, Mode: mode}, deps(&fakeWorkers{}))
		fails(t, r.Load(t.Context(), "m", &Override{}), infer.Unavailable, "Server not ready")
		if err := r.LoadAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		text := "explicit model load / unload is not allowed if polling is enabled"
		fails(t, r.Load(t.Context(), "m", &Override{}), infer.Unavailable, text)
		fails(t, r.Unload(t.Context(), "m", false), infer.Unavailable, text)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		fails(t, r.operate(t.Context(), func(context.Context) error { return nil }), infer.Unavailable, "the server is shutting down")
	}
}

func TestOverrides(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	json := `{"backend":"identity","max_batch_size":4,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2]}],` +
		`"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2]}],"instance_group":[{"count":1,"kind":"KIND_CPU"}]}`
	load := func(o *Override) error { return r.Load(t.Context(), "m", o) }
	if err := load(&Override{Config: &json}); err != nil || w.since() != "m/1 1" {
		t.Fatal(err)
	}
	if err := load(&Override{}); err != nil || w.since() != "m/1 2" {
		t.Errorf("back to the folder: %v", err)
	}
	data := []byte("weights")
	if err := load(&Override{Config: &json, Files: map[string][]byte{"/5/sub/w": data, "top": nil}}); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	spec := w.loads[0]
	w.mu.Unlock()
	got, err := os.ReadFile(filepath.Join(spec.ModelDir, "5/sub/w"))
	info, err2 := os.Stat(spec.ModelDir)
	if err != nil || err2 != nil || string(got) != "weights" || info.Mode().Perm() != 0o700 || spec.Version != 5 {
		t.Errorf("%v %v %q %v", err, err2, got, spec)
	}
	for _, path := range []string{"../x", "//etc/x", "/../x", "/", "1/../../x", "1/../x", "", ".", "1/", "a\x00b", `..\x`, "./x"} {
		err := load(&Override{Config: &json, Files: map[string][]byte{"1/w": data, path: data}})
		if infer.CodeOf(err) != infer.Internal || !strings.HasPrefix(err.Error(), "failed to load 'm', failed to poll from model repository: Invalid file parameter") {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := load(&Override{Config: &json, Files: map[string][]byte{"1/w": data, "1": data}}); err == nil {
		t.Error("a file took the place of a folder")
	}
	fails(t, load(&Override{Files: map[string][]byte{"1/w": data}}), infer.Internal,
		"failed to load 'm', failed to poll from model repository: Load parameter 'config' must be specified for model file override")
	for _, bad := range []string{"", "{", "[]", `{"nofield":1}`, `{"name":"other"}`} {
		if err := load(&Override{Config: &bad}); infer.CodeOf(err) != infer.Internal {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := load(&Override{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the files are removed", func() bool { _, err := os.Stat(spec.ModelDir); return errors.Is(err, os.ErrNotExist) })
}

// What a process left behind that was killed is removed; what others use is not.
func TestScratchIsSwept(t *testing.T) {
	parent := t.TempDir()
	a, b := &scratch{parent: parent}, &scratch{parent: parent}
	dir, err := a.folder()
	if err != nil {
		t.Fatal(err)
	}
	b.clean()
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("another's folder was removed: %v", err)
	}
	if err := a.lock.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	unlocked := filepath.Join(b.root(), "gateway-1") // its maker was killed before it had a lock
	if err := os.Mkdir(unlocked, 0o700); err != nil {
		t.Fatal(err)
	}
	b.clean()
	if _, err := os.Stat(unlocked); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that nobody locked is still there: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead process's folder is still there: %v", err)
	}
	if err := os.Chmod(filepath.Join(parent, fmt.Sprintf("sluice-%d", os.Getuid())), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := b.folder(); err == nil || !strings.Contains(err.Error(), "is not a folder of this user alone") {
		t.Errorf("a folder that all may write to was taken: %v", err)
	}
}

// Processes that begin and clean up at the same time leave each other's folders alone.
func TestScratchOfMany(t *testing.T) {
	parent := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 30 {
				s := &scratch{parent: parent}
				if dir, err := s.folder(); err != nil {
					t.Error(err)
				} else if _, err := os.Stat(dir); err != nil {
					t.Errorf("somebody removed a folder in use: %v", err)
				}
				s.clean()
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// 50,000 requests, each answered by the version that it got; whoever asks after a load
// call has returned gets the new one, and nobody still holds the old.
func TestNoOldAnswerAfterLoad(t *testing.T) {
	w := &fakeWorkers{}
	r, dir := explicit(t, w, Config{Startup: []string{"m"}}, map[string]string{"m/config.pbtxt": identity, "m/1/w": ""})
	var oldest atomic.Int64 // the load that has returned last
	var requests, wrong atomic.Int64
	born := sync.Map{} // *Model → load
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				floor := oldest.Load()
				m, err := r.Acquire(t.Context(), "m", "")
				if err != nil {
					t.Error(err)
					return
				}
				if ready, err := r.ModelReady("m", ""); !ready || err != nil || !r.Ready() {
					t.Errorf("not ready: %v", err)
				}
				if n, ok := born.Load(m); ok && n.(int64) < floor {
					wrong.Add(1)
				}
				requests.Add(1)
				m.Release()
			}
		})
	}
	for i := int64(1); i <= 50 || requests.Load() < 50_000; i++ {
		write(t, dir, map[string]string{"m/1/w": strings.Repeat("x", int(i))})
		old, err := r.lookup("m", "")
		if err != nil {
			t.Fatal(err)
		}
		born.Store(old, i-1)
		if err := r.Load(t.Context(), "m", &Override{}); err != nil {
			t.Fatal(err)
		}
		oldest.Store(i)
		select {
		case <-old.drained:
		default:
			t.Error("a request still holds the old version")
		}
	}
	stop()
	wg.Wait()
	if wrong.Load() > 0 {
		t.Errorf("%d of %d requests got an old version", wrong.Load(), requests.Load())
	}
}

// Loads and unloads of one model, at random and at the same time, follow one another;
// in the end everything was freed once (explicit's cleanup looks).
func TestConcurrentCalls(t *testing.T) {
	w := &fakeWorkers{}
	w.fail = func(spec LoadSpec, try int) error {
		if try%7 == 0 {
			return errors.New("now and then")
		}
		return nil
	}
	r, dir := explicit(t, w, Config{}, map[string]string{"a/config.pbtxt": identity, "a/1/w": "", "b/config.pbtxt": identity, "b/1/w": ""})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 40 {
				name := string(rune('a' + (g+i)%2))
				if (g*7+i)%5 == 0 {
					if err := r.Unload(t.Context(), name, i%2 == 0); err != nil {
						t.Error(err)
					}
					continue
				}
				file := filepath.Join(dir, name, "1", fmt.Sprintf("w%d", g))
				if err := os.WriteFile(file, []byte(strings.Repeat("x", i)), 0o644); err != nil {
					t.Error(err)
				}
				err := r.Load(t.Context(), name, &Override{})
				if err != nil && !strings.Contains(err.Error(), "now and then") && !errors.Is(err, errOvertaken) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(r.turns.all) != 0 {
		t.Errorf("%d turns are left", len(r.turns.all))
	}
}
