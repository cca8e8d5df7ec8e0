package repository

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/repository/backends"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// hostingWorkers have a backend that runs the files of others.
type hostingWorkers struct {
	*fakeWorkers
	all map[string]*worker.Backend
}

func (w hostingWorkers) Backends() map[string]*worker.Backend { return w.all }

func hosting(with ...*worker.Backend) hostingWorkers {
	w := hostingWorkers{fakeWorkers: &fakeWorkers{}, all: map[string]*worker.Backend{}}
	for _, b := range with {
		w.all[b.Name] = b
	}
	return w
}

const backed = `input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 } `

// loads is the outcome of a load: who runs the version, with what file, and the options.
func loads(t *testing.T, w hostingWorkers, cfg Config, config string) string {
	t.Helper()
	dir := t.TempDir()
	cfg.Paths = []string{write(t, filepath.Join(dir, "repo"), map[string]string{"m/config.pbtxt": config, "m/1/": ""})}
	write(t, filepath.Join(dir, "b"), map[string]string{"x/libown_x.so": "", "x/libfoo.so": ""})
	cfg.Backends = backends.Config{Directory: filepath.Join(dir, "b")}
	r := New(cfg, deps(w))
	err := r.LoadAll(t.Context())
	defer r.Close(t.Context())
	if err != nil {
		return strings.ReplaceAll(err.Error(), dir, "")
	}
	spec := w.loads[0]
	return spec.Backend + " " + strings.TrimPrefix(spec.BackendFile, dir) + " " + spec.Options["a"] + spec.Options["b"] + spec.Options["c"]
}

// A backend that no worker has is run by another from its file.
func TestHostedBackend(t *testing.T) {
	host := &worker.Backend{Name: "host", Runtimes: []*worker.Runtime{{File: "libown_<name>.so"}}}
	own := &worker.Backend{Name: "x"}
	options := Config{BackendOptions: map[string]map[string]string{"": {"a": "0", "b": "0", "c": "0"}, "host": {"a": "1", "b": "1"}, "x": {"a": "2"}}}
	for _, row := range []struct {
		name, config string
		workers      hostingWorkers
		cfg          Config
		want         string
	}{
		{"by its file", `backend: "x" ` + backed, hosting(host), options, "host /b/x/libown_x.so 210"},
		{"a worker has it", `backend: "x" ` + backed, hosting(host, own), options, "x  200"},
		{"a worker has it, the usual runtime", `backend: "x" runtime: "libown_x.so" ` + backed, hosting(host, own), Config{}, "x  "},
		{"a worker has it, another runtime", `backend: "x" runtime: "libfoo.so" ` + backed, hosting(host, own), Config{}, "host /b/x/libfoo.so "},
		{"a worker has it, no such runtime", `backend: "x" runtime: "libbar.so" ` + backed, hosting(host, own), Config{},
			"unable to find backend library 'libbar.so' for model 'm', searched: 'm/1' 'm' '/b/x' (no worker has backend 'x' of model 'm'; there are: host)"},
		{"nobody runs it", `backend: "x" ` + backed, hosting(called("other")), Config{Known: []*worker.Backend{host}},
			"the file of backend 'x' is run by backend 'host' (no worker has backend 'x' of model 'm'; there are: other)"},
		{"the one that runs it is broken", `backend: "x" ` + backed, hosting(broken(host)), Config{}, "backend 'x' of model 'm' can't be used: no library"},
		{"no file", `backend: "z" ` + backed, hosting(host), Config{}, "unable to find backend library for backend 'z', try specifying runtime on the model configuration. (no worker has backend 'z' of model 'm'; there are: host)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := loads(t, row.workers, row.cfg, row.config); !strings.Contains(got, row.want) {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// A version may bring its backend, where the operator lets it; others of the model don't have it then.
func TestBackendOfVersion(t *testing.T) {
	w := hosting(&worker.Backend{Name: "host", Runtimes: []*worker.Runtime{{File: "libown_<name>.so"}}})
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": `backend: "x" version_policy { all { } } ` + backed, "m/1/libown_x.so": "", "m/2/": "",
		"none/config.pbtxt": `backend: "x" ` + backed, "none/libown_x.so": ""})
	r := New(Config{Paths: []string{dir}, Backends: backends.Config{InModels: true}}, deps(w))
	err := r.LoadAll(t.Context())
	defer r.Close(t.Context())
	if err == nil || !strings.Contains(err.Error(), "unable to find backend library for backend 'x'") ||
		!strings.Contains(err.Error(), "at least one version must be available under the version policy of model 'none'") {
		t.Errorf("got %v", err)
	}
	if len(w.loads) != 1 || w.loads[0].Version != 1 || w.loads[0].BackendFile != filepath.Join(dir, "m/1/libown_x.so") {
		t.Errorf("loaded %+v", w.loads)
	}
}

func called(name string) *worker.Backend { return &worker.Backend{Name: name} }

func broken(b *worker.Backend) *worker.Backend {
	b = proto.CloneOf(b)
	b.Unavailable = "no library"
	return b
}

// The patch of a backend that asks to see every config is merged, for complete configs, too;
// what contradicts refuses the load, and nothing else.
func TestPatchedConfig(t *testing.T) {
	patched := &worker.Backend{Name: "identity", Patches: true, Ragged: true}
	w := hosting(patched)
	patch := &worker.ConfigPatch{MaxBatchSize: proto.Int32(8), Decoupled: proto.Bool(true), DynamicBatching: &configpb.ModelDynamicBatching{},
		BatchInput: []*configpb.BatchInput{{TargetName: []string{"n"}, DataType: configpb.DataType_TYPE_INT32, SourceInput: []string{"x"}}}}
	w.desc = map[string]*worker.DescribeResponse{"good": {Patch: patch}, "bad": {Patch: patch}}
	dir := write(t, t.TempDir(), map[string]string{"good/config.pbtxt": `backend: "identity" dynamic_batching { preferred_batch_size: 4 } ` + backed, "good/1/": "",
		"bad/config.pbtxt": `backend: "identity" max_batch_size: 16 ` + backed, "bad/1/": ""})
	r := New(Config{Paths: []string{dir}}, deps(w))
	err := r.LoadAll(t.Context())
	defer r.Close(t.Context())
	want := "bad/config.pbtxt:1:21: configuration specified max_batch_size 16, but the backend of model 'bad' specified max_batch_size 8"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(index(r), "good 1 READY") {
		t.Fatalf("got %v and\n%s", err, index(r))
	}
	cfg, err := r.Config("good", "")
	if err != nil || cfg.MaxBatchSize != 8 || !cfg.GetModelTransactionPolicy().GetDecoupled() || len(cfg.BatchInput) != 1 ||
		cfg.GetDynamicBatching().GetPreferredBatchSize()[0] != 4 {
		t.Errorf("got %v, %v", cfg, err)
	}
	m, err := r.Acquire(t.Context(), "good", "")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if !m.Decoupled() || len(m.Scheduled.BatchInput) > 0 || len(m.Config.BatchInput) == 0 {
		t.Errorf("decoupled %v, the scheduler computes %v", m.Decoupled(), m.Scheduled.BatchInput)
	}
}

// The file of a backend is part of what decides on its answers.
func TestContentOfBackend(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lib.so")
	sum := func(text string) [32]byte {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		all, err := content(t.Context(), &LoadSpec{Config: &configpb.ModelConfig{}, BackendFile: file})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if one := sum("1"); one == sum("2") || one != sum("1") {
		t.Error("the content does not follow the file")
	}
}
