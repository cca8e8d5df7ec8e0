package repository

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// fakeAgents note events, and replace folders by the one named in dir.
type fakeAgents struct {
	dir    string
	refuse bool

	mu     sync.Mutex
	runs   int
	events []string
}

type fakeRun struct {
	a   *fakeAgents
	n   int
	dir string
}

func (a *fakeAgents) note(n int, event AgentEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, fmt.Sprintf("%d %s", n, event))
}

func (a *fakeAgents) told() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.events, ", ")
}

func (a *fakeAgents) Load(_ context.Context, m AgentModel) (AgentRun, error) {
	a.runs++
	a.note(a.runs, EventLoad)
	if a.refuse {
		return nil, infer.Errorf(infer.InvalidArg, "wrong sum")
	}
	dir := m.Dir
	if a.dir != "" {
		dir = a.dir
	}
	return fakeRun{a, a.runs, dir}, nil
}

func (r fakeRun) Dir() string { return r.dir }
func (r fakeRun) Tell(_ context.Context, event AgentEvent) error {
	r.a.note(r.n, event)
	return errors.New("is only logged")
}

func TestAgents(t *testing.T) {
	named := identity + `model_repository_agents { agents { name: "a" } }`
	dir := write(t, t.TempDir(), map[string]string{"repository/m/config.pbtxt": named, "repository/m/1/w": "", "other/config.pbtxt": named, "other/7/": ""})
	w, a := &fakeWorkers{}, &fakeAgents{dir: filepath.Join(dir, "other")}
	d := deps(w)
	d.Agents = a
	r := New(Config{Paths: []string{filepath.Join(dir, "repository")}, Mode: Explicit}, d)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	load := func() error { return r.Load(t.Context(), "m", &Override{}) }
	told := func(want string) {
		t.Helper()
		eventually(t, want+"; told was "+a.told(), func() bool { return a.told() == want })
		a.events = nil
	}
	if err := load(); err != nil || index(r) != "m 7 READY\n" || w.loads[0].ModelDir != a.dir {
		t.Fatalf("%v, %s", err, index(r))
	}
	told("1 LOAD, 1 LOAD_COMPLETE")
	if err := load(); err != nil {
		t.Fatal(err)
	}
	told("")
	write(t, dir, map[string]string{"repository/m/1/w": "x"})
	if err := load(); err != nil {
		t.Fatal(err)
	}
	told("2 LOAD, 2 LOAD_COMPLETE, 1 UNLOAD, 1 UNLOAD_COMPLETE")
	w.fail = func(LoadSpec, int) error { return errors.New("broken") }
	write(t, dir, map[string]string{"repository/m/1/w": "xx"})
	if err := load(); err == nil {
		t.Error("a broken model was loaded")
	}
	told("3 LOAD, 3 LOAD_FAIL")
	a.refuse = true
	if err := load(); err == nil || !strings.Contains(err.Error(), "wrong sum") || index(r) != "m 7 READY: Invalid argument: wrong sum\n" {
		t.Errorf("%v, %s", err, index(r))
	}
	told("4 LOAD")
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	told("2 UNLOAD, 2 UNLOAD_COMPLETE")
}

// fakeStores hold one remote repository.
type fakeStores struct {
	dir    string
	asked  []string
	broken bool
}

func (*fakeStores) Remote(path string) bool { return strings.HasPrefix(path, "s3://") }
func (s *fakeStores) Sync(_ context.Context, path, model string) (string, error) {
	s.asked = append(s.asked, path+" "+model)
	if s.broken {
		return "", infer.Errorf(infer.Unavailable, "the cloud is gone")
	}
	return s.dir, nil
}

func TestStores(t *testing.T) {
	s := &fakeStores{dir: write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})}
	d := deps(&fakeWorkers{})
	d.Stores = s
	r := New(Config{Paths: []string{"s3://bucket/models"}, Mode: Explicit, Startup: []string{"m"}}, d)
	if err := r.LoadAll(t.Context()); err != nil || index(r) != "m 1 READY\n" {
		t.Fatal(err)
	}
	s.broken = true
	err := r.Load(t.Context(), "m", &Override{})
	if infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), "the cloud is gone") {
		t.Errorf("got %v", err)
	}
	if ok, err := r.ModelReady("m", ""); !ok || err != nil {
		t.Errorf("a cloud that is gone took the model with it: %v", err)
	}
	if got := strings.Join(s.asked, ", "); got != "s3://bucket/models m, s3://bucket/models m" {
		t.Errorf("asked for %s", got)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func ensemble(steps ...string) string {
	text := `platform: "ensemble" max_batch_size: 8
input { name: "in" data_type: TYPE_FP32 dims: [ 2, -1 ] } output { name: "out" data_type: TYPE_FP32 dims: [ 2, -1 ] }
ensemble_scheduling { `
	from := "in"
	for i, step := range steps {
		to := fmt.Sprintf("t%d", i)
		if i == len(steps)-1 {
			to = "out"
		}
		text += fmt.Sprintf(`step { model_name: %q model_version: -1 input_map { key: "in" value: %q } output_map { key: "out" value: %q } } `, step, from, to)
		from = to
	}
	return text + "}"
}

// What becomes of ensembles and their steps, as the original does it.
func TestDependents(t *testing.T) {
	w := &fakeWorkers{}
	r, dir := explicit(t, w, Config{Startup: []string{"e"}}, map[string]string{"a/config.pbtxt": identity, "a/1/w": "", "b/config.pbtxt": identity, "b/1/": "",
		"e/config.pbtxt": ensemble("a", "b"), "e/1/": "", "ee/config.pbtxt": ensemble("e", "a"), "ee/1/": "", "miss/config.pbtxt": ensemble("a", "nothere"), "miss/1/": "",
		"x/config.pbtxt": ensemble("y", "a"), "x/1/": "", "y/config.pbtxt": ensemble("x", "a"), "y/1/": ""})
	state := func(when string, ready ...string) {
		t.Helper()
		for _, name := range []string{"a", "b", "e", "ee"} {
			want := strings.Contains(" "+strings.Join(ready, " ")+" ", " "+name+" ")
			if ok, err := r.ModelReady(name, ""); ok != want {
				t.Errorf("%s: %s ready is %v (%v), want %v", when, name, ok, err, want)
			}
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	load := func(name string) error { return r.Load(t.Context(), name, &Override{}) }
	state("at the start", "a", "b", "e")
	do(r.Unload(t.Context(), "a", false))
	state("without a step", "b")
	do(load("a"))
	state("with the step again", "a", "b", "e")
	do(r.Unload(t.Context(), "e", true))
	state("a was loaded for its own sake", "a")
	do(load("ee"))
	state("an ensemble of an ensemble", "a", "b", "e", "ee")
	write(t, dir, map[string]string{"a/1/w": "x"})
	do(load("a"))
	state("a step is loaded again", "a", "b", "e", "ee")
	do(r.Unload(t.Context(), "a", false))
	state("two levels fall", "b")
	do(load("a"))
	state("two levels rise", "a", "b", "e", "ee")
	do(r.Unload(t.Context(), "ee", true))
	state("all but a", "a")
	if err := load("miss"); infer.CodeOf(err) != infer.InvalidArg ||
		err.Error() != "load failed for model 'miss': ensemble miss contains models that are not available or ambiguous: nothere\n" {
		t.Errorf("got %v", err)
	}
	if err := load("x"); err == nil {
		t.Error("a circle was loaded")
	}
	do(r.Unload(t.Context(), "miss", false))
	do(r.Unload(t.Context(), "x", false))
}

// Loads of ensembles and of their steps, at random and at the same time, all end.
func TestEnsemblesAtRandom(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{}, map[string]string{"a/config.pbtxt": identity, "a/1/": "", "b/config.pbtxt": identity, "b/1/": "",
		"e/config.pbtxt": ensemble("a", "b"), "e/1/": "", "f/config.pbtxt": ensemble("b", "e"), "f/1/": "",
		"x/config.pbtxt": ensemble("y", "a"), "x/1/": "", "y/config.pbtxt": ensemble("x", "b"), "y/1/": ""})
	names := []string{"a", "b", "e", "f", "x", "y"}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 30 {
				name := names[(g*5+i*7)%len(names)]
				if (g+i)%3 == 0 {
					if err := r.Unload(t.Context(), name, i%2 == 0); err != nil {
						t.Error(err)
					}
				} else if err := r.Load(t.Context(), name, &Override{}); err != nil && infer.CodeOf(err) != infer.InvalidArg && !errors.Is(err, errOvertaken) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"x", "y"} {
		if err := r.Unload(t.Context(), name, false); err != nil {
			t.Error(err)
		}
	}
	if err := r.Load(t.Context(), "f", &Override{}); err != nil {
		t.Errorf("after all: %v", err)
	}
	for _, name := range names[:4] {
		if ok, err := r.ModelReady(name, ""); !ok {
			t.Errorf("%s is not ready after all: %v", name, err)
		}
	}
}

func TestNamespaces(t *testing.T) {
	other := write(t, t.TempDir(), map[string]string{"a/config.pbtxt": identity, "a/2/": "", "e/config.pbtxt": ensemble("a"), "e/1/": ""})
	r, own := explicit(t, &fakeWorkers{}, Config{Namespacing: true, Startup: []string{"*"}, Paths: []string{other}},
		map[string]string{"a/config.pbtxt": identity, "a/1/": "", "only/config.pbtxt": identity, "only/1/": ""})
	if got := index(r); strings.Count(got, "READY") != 4 {
		t.Errorf("got %s", got)
	}
	_, err := r.Acquire(t.Context(), "a", "")
	fails(t, err, infer.InvalidArg, "There are 2 identifiers of model 'a' in global map, model namespace must be provided to resolve ambiguity.")
	for space, want := range map[string]int64{other: 2, own: 1} {
		m, err := r.AcquireStep(t.Context(), space, Need{Name: "a", Version: -1})
		if err != nil || m.Version != want {
			t.Errorf("a step in %s: %v", space, err)
			continue
		}
		m.Release()
	}
	if ok, err := r.ModelReady("e", ""); !ok {
		t.Errorf("the ensemble of the other repository: %v", err)
	}
	if all, err := r.Statistics("", ""); err != nil || len(all.ModelStats) != 4 {
		t.Errorf("%v, %v", all, err)
	}
	if err := r.Unload(t.Context(), "a", false); err != nil {
		t.Error(err)
	}
	_, err = r.Acquire(t.Context(), "a", "")
	fails(t, err, infer.NotFound, "Request for unknown model: 'a' has no available versions")
}
