package repository

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// passing is an ensemble that gives in to a step and answers with its out.
func passing(step, version string) string {
	return `platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, -1 ] }
ensemble_scheduling { step { model_name: "` + step + `" model_version: ` + version + `
  input_map { key: "in" value: "IN" } output_map { key: "out" value: "OUT" } } }
`
}

// over is passing over another ensemble.
func over(step string) string {
	return strings.NewReplacer(`"in"`, `"IN"`, `"out"`, `"OUT"`).Replace(passing(step, "-1"))
}

func TestEnsembles(t *testing.T) {
	w := &fakeWorkers{fail: func(spec LoadSpec, _ int) error {
		if spec.Name == "lost" {
			return infer.Errorf(infer.Internal, "out of memory")
		}
		return nil
	}}
	files := map[string]string{
		"m/config.pbtxt":     strings.Replace(identity, "dims: [ 2, -1 ] }\ninst", "dims: [ 2, -1 ] label_filename: \"l.txt\" }\ninst", 1),
		"m/l.txt":            "cat\ndog\n",
		"many/config.pbtxt":  identity + "model_transaction_policy { decoupled: true }",
		"fewer/config.pbtxt": strings.Replace(identity, "max_batch_size: 8", "max_batch_size: 4", 1),
		"lost/config.pbtxt":  identity, "bad/config.pbtxt": "max_batchsize: 2",
		"aa_over/config.pbtxt": over("first"), "first/config.pbtxt": passing("m", "-1"), "stream/config.pbtxt": passing("many", "-1"),
		"x_fewer/config.pbtxt": passing("fewer", "-1"), "x_version/config.pbtxt": passing("m", "7"), "x_nobody/config.pbtxt": passing("nobody", "-1"),
		"x_lost/config.pbtxt": passing("lost", "-1"), "x_bad/config.pbtxt": passing("bad", "-1"), "a_over_bad/config.pbtxt": over("x_nobody"),
		"circle1/config.pbtxt": over("circle2"), "circle2/config.pbtxt": over("circle1"),
	}
	for name := range files {
		if dir, ok := strings.CutSuffix(name, "config.pbtxt"); ok {
			files[dir+"1/"] = ""
		}
	}
	r, err := load(t, w, Config{}, files)
	if err == nil {
		t.Error("no error, though ensembles could not be loaded")
	}
	got := index(r)
	for name, want := range map[string]string{
		"aa_over": "READY", "first": "READY", "stream": "READY",
		"x_fewer":    "x_fewer/config.pbtxt:3:23: ensemble x_fewer allows maximum batch size 8, but it contains model fewer which only allows maximum batch size to be 4",
		"x_version":  "UNAVAILABLE: Invalid argument: ensemble 'x_version' depends on 'm' whose required version 7 is not loaded.",
		"x_nobody":   "UNAVAILABLE: Invalid argument: ensemble x_nobody contains models that are not available or ambiguous: nobody",
		"x_lost":     "ensemble 'x_lost' depends on 'lost' which has no loaded version. Model 'lost' loading failed with error: version 1 is at UNAVAILABLE state: Internal: out of memory;",
		"x_bad":      "ensemble 'x_bad' depends on 'bad' which is not valid. Model 'bad' failed with error: bad/config.pbtxt:1:1: unknown field",
		"a_over_bad": "ensemble 'a_over_bad' depends on 'x_nobody' which is not valid. Model 'x_nobody' failed with error: ensemble x_nobody contains",
		"circle1":    "circular dependency between ensembles: circle1 -> ... -> circle2 -> circle1",
		"circle2":    "circular dependency between ensembles: circle2 -> ... -> circle1 -> circle2",
	} {
		at := strings.Index("\n"+got, "\n"+name+" 1 ")
		if at < 0 {
			t.Errorf("%s is not in the index\n%s", name, got)
			continue
		}
		if line, _, _ := strings.Cut(got[at:], "\n"); !strings.Contains(line, want) {
			t.Errorf("got  %s\nwant %s", line, want)
		}
	}
	m, err := r.Acquire(t.Context(), "aa_over", "")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if labels := m.Labels("OUT"); len(labels) != 2 || labels[1] != "dog" || m.Decoupled() {
		t.Errorf("labels %v, decoupled %v", labels, m.Decoupled())
	}
	if cfg, err := r.Config("stream", ""); err != nil || !cfg.GetModelTransactionPolicy().GetDecoupled() {
		t.Errorf("an ensemble of a decoupled step: %v, %v", cfg, err)
	}
}

func TestNeeds(t *testing.T) {
	cfg := model(t, `name: "e" ensemble_scheduling {
		step { model_name: "a" model_version: -1 } step { model_name: "b" model_version: 3 } step { model_name: "a" model_version: -7 }
		step { model_name: "a" model_version: 2 model_namespace: "/r" } step { } }`).Config
	got := Needs(cfg)
	want := []Need{{"a", "", -1}, {"b", "", 3}, {"a", "/r", 2}}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

// fiveInstances is a load call for what passing runs.
func fiveInstances() *Override {
	json := `{"backend":"identity","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,-1]}],` +
		`"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,-1]}],"instance_group":[{"count":5,"kind":"KIND_CPU"}]}`
	return &Override{Config: &json}
}

// An ensemble that comes back with its step leaves the step as the call has loaded it.
func TestEnsembleComesBackOverAnOverride(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{Startup: []string{"*"}}, map[string]string{"m/config.pbtxt": identity, "m/1/": "",
		"whole/config.pbtxt": passing("m", "-1"), "whole/1/": ""})
	if err := r.Unload(t.Context(), "m", false); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Acquire(t.Context(), "whole", ""); err == nil {
		m.Release()
		t.Fatal("the ensemble serves without its step")
	}
	w.since()
	if err := r.Load(t.Context(), "m", fiveInstances()); err != nil {
		t.Fatal(err)
	}
	m, err := r.Acquire(t.Context(), "whole", "")
	if err != nil {
		t.Fatalf("the ensemble did not come back: %v", err)
	}
	m.Release()
	if got := w.since(); got != "m/1 5" {
		t.Errorf("loads: %s, want that of the call alone: m/1 5", got)
	}
}

// A load of an ensemble that waits for its step's turn finds what the call before it brought.
func TestEnsembleWaitsForAnOverride(t *testing.T) {
	building, release := make(chan struct{}), make(chan struct{})
	w := &fakeWorkers{fail: func(spec LoadSpec, _ int) error {
		if len(spec.Instances) == 5 {
			close(building)
			<-release
		}
		return nil
	}}
	r, _ := explicit(t, w, Config{Startup: []string{"*"}}, map[string]string{"m/config.pbtxt": identity, "m/1/": "",
		"whole/config.pbtxt": passing("m", "-1"), "whole/1/": ""})
	w.since()
	loaded, ready := make(chan error, 1), make(chan error, 1)
	go func() { loaded <- r.Load(t.Context(), "m", fiveInstances()) }()
	<-building
	go func() { ready <- r.Load(t.Context(), "whole", &Override{}) }()
	eventually(t, "the ensemble's load waits for its step", func() bool {
		r.turns.mu.Lock()
		defer r.turns.mu.Unlock()
		return len(r.turns.all[key{name: "m"}].queue) > 0
	})
	close(release)
	if err := errors.Join(<-loaded, <-ready); err != nil {
		t.Fatal(err)
	}
	if got := w.since(); got != "m/1 like 5" {
		t.Errorf("loads: %s, want that of the call alone: m/1 like 5", got)
	}
}

// An ensemble that a call loaded with a config of its own comes back with that, each time.
func TestEnsembleComesBackWithItsOwnConfig(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{Startup: []string{"*"}}, map[string]string{"m/config.pbtxt": identity, "m/1/": "",
		"whole/config.pbtxt": passing("m", "-1"), "whole/1/": ""})
	json := `{"platform":"ensemble","max_batch_size":2,"input":[{"name":"IN","data_type":"TYPE_FP32","dims":[2,-1]}],` +
		`"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[2,-1]}],"ensemble_scheduling":{"step":[{"model_name":"m",` +
		`"model_version":-1,"input_map":{"in":"IN"},"output_map":{"out":"OUT"}}]}}`
	if err := r.Load(t.Context(), "whole", &Override{Config: &json}); err != nil {
		t.Fatal(err)
	}
	for try := range 3 {
		if err := errors.Join(r.Unload(t.Context(), "m", false), r.Load(t.Context(), "m", &Override{})); err != nil {
			t.Fatal(err)
		}
		cfg, err := r.Config("whole", "")
		if err != nil || cfg.MaxBatchSize != 2 {
			t.Errorf("return %d: max_batch_size %d, want 2: %v", try, cfg.GetMaxBatchSize(), err)
		}
	}
}
