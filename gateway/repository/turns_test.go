package repository

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// passingJSON is passing as the config of a load call.
func passingJSON(step string) *string {
	text := `{"platform":"ensemble","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,-1]}],
"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,-1]}],"ensemble_scheduling":{"step":[{"model_name":"` + step + `",
"model_version":-1,"input_map":{"in":"in"},"output_map":{"out":"out"}}]}}`
	return &text
}

// Load calls whose configs make ensembles of one another end, whatever their order.
func TestEnsemblesByCallsDoNotWaitForEachOther(t *testing.T) {
	for range 50 {
		r, _ := explicit(t, &fakeWorkers{}, Config{}, map[string]string{
			"a/config.pbtxt": identity, "a/1/w": "1", "b/config.pbtxt": identity, "b/1/w": "1"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var wg sync.WaitGroup
		for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
			wg.Go(func() {
				if err := r.Load(ctx, pair[0], &Override{Config: passingJSON(pair[1])}); infer.CodeOf(err) == infer.Cancelled {
					t.Errorf("load of '%s' did not end: %v", pair[0], err)
				}
			})
		}
		wg.Wait()
		cancel()
		if t.Failed() {
			return
		}
	}
}

// A model that serves and is to become an ensemble of itself goes on as it was.
func TestEnsembleOfItself(t *testing.T) {
	r, dir := explicit(t, &fakeWorkers{}, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Fatal(err)
	}
	for _, call := range []*Override{{Config: passingJSON("m")}, {}} {
		if call.empty() {
			write(t, dir, map[string]string{"m/config.pbtxt": strings.NewReplacer(`"IN"`, `"in"`, `"OUT"`, `"out"`).Replace(passing("m", "-1"))})
		}
		err := r.Load(t.Context(), "m", call)
		if err == nil || !strings.Contains(err.Error(), "circular dependency between ensembles: m -> ... -> m -> m") {
			t.Errorf("got %v", err)
		}
		if ok, err := r.ModelReady("m", ""); !ok {
			t.Errorf("the model before is gone: %v", err)
		}
	}
}

// What a load call wanted and did not get is not done later.
func TestFailedCallIsForgotten(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{}, map[string]string{
		"m/config.pbtxt": identity, "m/1/w": "1", "late/config.pbtxt": identity, "late/1/": "", "other/config.pbtxt": "broken"})
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Fatal(err)
	}
	w.fail = func(spec LoadSpec, try int) error {
		if spec.Name == "late" && try == 1 {
			return infer.Errorf(infer.Internal, "not yet")
		}
		return nil
	}
	if err := r.Load(t.Context(), "m", &Override{Config: passingJSON("late")}); err == nil {
		t.Fatal("an ensemble without its step was loaded")
	}
	if err := r.Load(t.Context(), "late", &Override{}); err != nil {
		t.Fatal(err)
	}
	if cfg, err := r.Config("m", ""); err != nil || cfg.GetEnsembleScheduling() != nil {
		t.Errorf("the config of a call that failed is served: %v, %v", cfg.GetPlatform(), err)
	}
}

// A load that fails while the version before is on its way out is what the index tells.
func TestFailureOutlastsUnload(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Fatal(err)
	}
	m, err := r.Acquire(t.Context(), "m", "")
	if err != nil {
		t.Fatal(err)
	}
	first := w.loaded["m/1"]
	if err := r.Unload(t.Context(), "m", false); err != nil {
		t.Fatal(err)
	}
	w.fail = func(LoadSpec, int) error { return infer.Errorf(infer.Internal, "out of memory") }
	if err := r.Load(t.Context(), "m", &Override{}); err == nil {
		t.Fatal("loaded")
	}
	m.Release()
	eventually(t, "freed", func() bool { return first.unloaded.Load() == 1 })
	eventually(t, "over", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.leaving) == 0 })
	if got := index(r); got != "m 1 UNAVAILABLE: Internal: out of memory\n" {
		t.Errorf("index %s", got)
	}
	if r.Ready() {
		t.Error("ready, though a model that is wanted could not be loaded")
	}
}

// A folder that is what it was again, after a load of something else failed, is no fault
// any more, and polls leave it alone.
func TestPollOfARestoredFolder(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	r := New(Config{Paths: []string{dir}, Mode: Poll}, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	config := filepath.Join(dir, "m/config.pbtxt")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		if err := polled(t.Context(), r, newSteady(0)); err != nil {
			t.Error(err)
		}
	}
	if err := os.Rename(config, dir+"/.kept"); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{".new": "nonsense"})
	move(dir+"/.new", config)
	if got := index(r); !strings.HasPrefix(got, "m 1 READY: ") {
		t.Errorf("with a broken config: %s", got)
	}
	move(dir+"/.kept", config)
	if got := index(r); got != "m 1 READY\n" {
		t.Errorf("with the config of before: %s", got)
	}
	for _, f := range must(r.find(t.Context(), "")) {
		if r.changed(f, newSteady(0)) {
			t.Error("the next poll would load it again")
		}
	}
}

// A folder that can't be looked through is told of by polls, once, and well again when it
// is.
func TestPollOfAFolderThatCannotBeRead(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	r := New(Config{Paths: []string{dir}, Mode: Poll}, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	poll := func(want string) {
		t.Helper()
		if err := polled(t.Context(), r, newSteady(0)); err != nil || index(r) != want {
			t.Errorf("%v, index %s, want %s", err, index(r), want)
		}
		for _, f := range must(r.find(t.Context(), "")) {
			if r.changed(f, newSteady(0)) {
				t.Errorf("'%s' would be loaded at the next look, too", f.Name)
			}
		}
	}
	deep := strings.Repeat("/d", maxDepth+1)
	write(t, dir, map[string]string{"m" + deep + "/w": "1", "new" + deep + "/w": "1"})
	fault := "Internal: failed to read the model folder: folders are nested deeper than 16: '" + deep[1:] + "/'\n"
	poll("m 1 READY: " + fault + "new - UNAVAILABLE: " + fault)
	for _, name := range []string{"m", "new"} {
		if err := os.RemoveAll(filepath.Join(dir, name, "d")); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, map[string]string{"new/config.pbtxt": identity, "new/1/w": "1"})
	poll("m 1 READY\nnew 1 READY\n")
}

func must(folders []Folder, _ []string, err error) []Folder {
	if err != nil {
		panic(err)
	}
	return folders
}
