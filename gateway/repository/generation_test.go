package repository

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

const cachedConfig = `backend: "identity"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
`

const enabled = "response_cache { enable: true }\n"

func cachedEnsemble(step string) string {
	return `platform: "ensemble"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step { model_name: "` + step + `" model_version: -1 input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } } }
`
}

func current(t *testing.T, r *Repository, name string) *cache.Subject {
	t.Helper()
	m, err := r.Acquire(t.Context(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	return m.Current()
}

func TestSubjects(t *testing.T) {
	files := map[string]string{"off/1/": "", "off/config.pbtxt": cachedConfig, "on/1/": "", "on/config.pbtxt": cachedConfig + enabled,
		"set/3/": "", "set/config.pbtxt": cachedConfig + enabled + `parameters { key: "response_cache_ttl" value { string_value: "1.5" } }
parameters { key: "response_cache_tags" value { string_value: "b,a" } } dynamic_batching { preserve_ordering: true }`,
		"never/1/": "", "never/config.pbtxt": cachedConfig + enabled + `parameters { key: "response_cache_ttl" value { string_value: "0" } }`}
	r, err := load(t, &fakeWorkers{}, Config{Cache: CacheConfig{On: true}}, files)
	if err != nil {
		t.Fatal(err)
	}
	if s := current(t, r, "off"); s != nil {
		t.Errorf("without response_cache: %+v", s)
	}
	if s := current(t, r, "on"); s.Model != "on" || s.Version != "1" || s.TTL != 0 || s.Ordered || s.Content != ([32]byte{}) || s.Load == 0 {
		t.Errorf("got %+v; the content is not needed in one process", s)
	}
	if s := current(t, r, "set"); s.Version != "3" || s.TTL != 1500*time.Millisecond || !slices.Equal(s.Tags, []string{"a", "b"}) || !s.Ordered {
		t.Errorf("got %+v", s)
	}
	if s := current(t, r, "never"); s.TTL >= 0 {
		t.Errorf("got %+v", s)
	}
	bad := map[string]string{"m/1/": "", "m/config.pbtxt": cachedConfig + enabled + `parameters { key: "response_cache_ttl" value { string_value: "-2" } }`}
	if _, err := load(t, &fakeWorkers{}, Config{Cache: CacheConfig{On: true}}, bad); infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), "'-2' is no time to live") {
		t.Errorf("got %v", err)
	}
	r, err = load(t, &fakeWorkers{}, Config{}, files)
	if err != nil || current(t, r, "on") != nil {
		t.Errorf("without a cache: %v", err)
	}
}

// The content is the same for the same files, and another for every change that could
// change an answer.
func TestContent(t *testing.T) {
	base := map[string]string{"m/1/model.bin": "weights", "m/1/sub/vocabulary": "words", "m/labels.txt": "cat", "m/2/model.bin": "other version",
		"m/config.pbtxt": cachedConfig + enabled + "version_policy { specific { versions: 1 } }\n"}
	of := func(change map[string]string, options map[string]string) [32]byte {
		t.Helper()
		files := map[string]string{}
		for k, v := range base {
			files[k] = v
		}
		for k, v := range change {
			if files[k] = v; v == "-" {
				delete(files, k)
			}
		}
		r, err := load(t, &fakeWorkers{}, Config{Cache: CacheConfig{On: true, Shared: true},
			BackendOptions: map[string]map[string]string{"identity": options}}, files)
		if err != nil {
			t.Fatal(err)
		}
		return current(t, r, "m").Content
	}
	first := of(nil, nil)
	if first == ([32]byte{}) || of(nil, nil) != first {
		t.Error("the same files in another folder must have the same content")
	}
	for name, change := range map[string]map[string]string{
		"another version": {"m/2/model.bin": "changed"}, "a comment in the config": {"m/config.pbtxt": "# hello\n" + base["m/config.pbtxt"]},
	} {
		if of(change, nil) != first {
			t.Errorf("%s changed the content", name)
		}
	}
	seen := map[[32]byte]string{first: "nothing"}
	for name, change := range map[string]map[string]string{
		"weights": {"m/1/model.bin": "weightz"}, "sub-folder": {"m/1/sub/vocabulary": "word"}, "new file": {"m/1/more": ""},
		"file gone": {"m/1/model.bin": "-"}, "file renamed": {"m/1/model.bin": "-", "m/1/model2.bin": "weights"}, "labels": {"m/labels.txt": "dog"},
		"config":                  {"m/config.pbtxt": strings.Replace(base["m/config.pbtxt"], "max_batch_size: 4", "max_batch_size: 5", 1)},
		"bytes moved to the next": {"m/1/model.bin": "weight", "m/1/sub/vocabulary": "swords"},
	} {
		c := of(change, nil)
		if other, ok := seen[c]; ok {
			t.Errorf("%s has the content of %s", name, other)
		}
		seen[c] = name
	}
	if of(nil, map[string]string{"precision": "half"}) == first {
		t.Error("the backend's settings must count")
	}
}

// A reload is another load, and the old one is forgotten once nobody uses it.
func TestReloadIsAnotherLoad(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"m/1/": "", "m/config.pbtxt": cachedConfig + enabled, "all/1/": "",
		"all/config.pbtxt": cachedEnsemble("m") + enabled, "plain/1/": "", "plain/config.pbtxt": cachedConfig,
		"over/1/": "", "over/config.pbtxt": cachedEnsemble("plain") + enabled})
	var forgotten []uint64
	d := deps(&fakeWorkers{})
	gone := make(chan uint64, 100)
	d.Forget = func(_ context.Context, load uint64) { gone <- load }
	r := New(Config{Paths: []string{dir}, Mode: Explicit, Startup: []string{"*"}, Cache: CacheConfig{On: true, Shared: true}}, d)
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, all, over := current(t, r, "m"), current(t, r, "all"), current(t, r, "over")
	if all.Content == ([32]byte{}) || all.Content == m.Content {
		t.Errorf("an ensemble of a known step: content %x", all.Content)
	}
	if over.Content != ([32]byte{}) {
		t.Errorf("an ensemble of a step whose content is not known must stay in the process: %x", over.Content)
	}
	if current(t, r, "all") != all || current(t, r, "over") != over {
		t.Error("nothing changed, and the ensemble is another")
	}
	reload := func(name, more string) {
		t.Helper()
		file := filepath.Join(dir, name, "config.pbtxt")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, more...), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := r.Load(t.Context(), name, &Override{}); err != nil {
			t.Fatal(err)
		}
	}
	reload("m", `parameters { key: "x" value { string_value: "y" } }`)
	newM, newAll := current(t, r, "m"), current(t, r, "all")
	if newM.Load == m.Load || newM.Content == m.Content {
		t.Error("a reload with another config is the same to the cache")
	}
	if newAll == all || newAll.Load == all.Load || newAll.Content == all.Content {
		t.Error("the step was loaded anew, and the ensemble is the same to the cache")
	}
	if current(t, r, "over").Load != over.Load {
		t.Error("an ensemble changed with a model that it does not run")
	}
	reload("plain", `parameters { key: "x" value { string_value: "y" } }`)
	if current(t, r, "over").Load == over.Load {
		t.Error("a step without response_cache was loaded anew, and the ensemble is the same to the cache")
	}
	deadline := time.After(time.Minute)
	for !slices.Contains(forgotten, m.Load) {
		select {
		case load := <-gone:
			forgotten = append(forgotten, load)
		case <-deadline:
			t.Fatalf("load %d was not forgotten, but %v", m.Load, forgotten)
		}
	}
}
