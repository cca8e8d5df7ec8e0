package repository

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

func TestMain(m *testing.M) { leak.Main(m) }

const identity = `backend: "identity" max_batch_size: 8
input { name: "in" data_type: TYPE_FP32 dims: [ 2, -1 ] } output { name: "out" data_type: TYPE_FP32 dims: [ 2, -1 ] }
instance_group { kind: KIND_CPU count: 2 }
`

var batching = &worker.DescribeResponse{Inputs: []*worker.TensorInfo{info("x", configpb.DataType_TYPE_FP32, -1, 512)},
	Outputs: []*worker.TensorInfo{info("y", configpb.DataType_TYPE_FP32, -1, 3)}}

func TestLoadAll(t *testing.T) {
	w := &fakeWorkers{desc: map[string]*worker.DescribeResponse{"silent": batching}}
	w.fail = func(spec LoadSpec, _ int) error {
		if spec.Name == "refused" {
			return infer.Errorf(infer.Internal, "out of memory")
		}
		return nil
	}
	r, err := load(t, w, Config{}, map[string]string{
		"good/config.pbtxt": identity, "good/1/": "", "good/3/": "", "good/02/": "", "good/x/": "",
		"all/config.pbtxt": identity + "version_policy { all {} }", "all/1/": "", "all/12/": "",
		"some/config.pbtxt": identity + "version_policy { specific { versions: [1, 9] } }", "some/1/": "", "some/2/": "",
		"silent/1/model.onnx":  "",
		"refused/config.pbtxt": identity, "refused/1/": "",
		"badtext/config.pbtxt": "max_batchsize: 2", "badtext/1/": "",
		"noversion/config.pbtxt": identity,
		"nofile/config.pbtxt":    `backend: "onnxruntime"`, "nofile/1/net.onnx": "",
		"sequence/config.pbtxt": identity + "sequence_batching { }", "sequence/1/": "",
		"odd/config.pbtxt": `backend: "odd"`, "odd/1/": "",
		"labels/config.pbtxt": strings.Replace(identity, "dims: [ 2, -1 ] }\ninst", "dims: [ 2, -1 ] label_filename: \"l.txt\" }\ninst", 1), "labels/1/": "",
		"nothing/1/weights.bin": "",
		".git/1/":               "", "README.md": "",
	})
	want := `all 1 READY
all 12 READY
badtext - UNAVAILABLE: Invalid argument: badtext/config.pbtxt:1:1: unknown field "max_batchsize" in ModelConfig; did you mean "max_batch_size"?
good 3 READY
labels 1 UNAVAILABLE: Invalid argument: labels/config.pbtxt:2:117: label file of output 'out': failed to open text file for read 'l.txt': no such file
nofile 1 UNAVAILABLE: Not found: unable to find '1/model.onnx' for model 'nofile': the version folder holds net.onnx
nothing - UNAVAILABLE: Invalid argument: Invalid model name: Could not determine backend for model 'nothing' with no backend in model configuration. Expected model name of the form 'model.<backend_name>'.
noversion - UNAVAILABLE: Invalid argument: at least one version must be available under the version policy of model 'noversion'
odd - UNAVAILABLE: Invalid argument: odd/config.pbtxt:1:1: unable to find backend library for backend 'odd', try specifying runtime on the model configuration. (no worker has backend 'odd' of model 'odd'; there are: identity, onnxruntime)
refused 1 UNAVAILABLE: Internal: out of memory
sequence 1 READY
silent 1 READY
some 1 READY
`
	if got := index(r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range []string{"badtext", "labels", "nofile", "nothing", "noversion", "odd", "refused"} {
		if err == nil || !strings.Contains(err.Error(), "'"+name+"'") {
			t.Errorf("error does not name %s: %v", name, err)
		}
	}
	if r.Ready() {
		t.Error("ready, though models failed")
	}
	if n := len(r.Index(true).Models); n != 6 {
		t.Errorf("%d ready models in the index, want 6", n)
	}
	cfg, err := r.Config("silent", "")
	if err != nil || cfg.MaxBatchSize != 4 || len(cfg.Input) != 1 || cfg.InstanceGroup[0].Count != 2 {
		t.Errorf("silent was completed to %v, %v", cfg, err)
	}
	if w.describe.Load() != 1 {
		t.Errorf("%d model files were described, want 1: complete configs need none", w.describe.Load())
	}
}

func TestDuplicates(t *testing.T) {
	other := write(t, t.TempDir(), map[string]string{"twice/config.pbtxt": identity, "twice/1/": "", "only/config.pbtxt": identity, "only/1/": ""})
	r, err := load(t, &fakeWorkers{}, Config{Paths: []string{other, "/nonexistent"}}, map[string]string{"twice/config.pbtxt": identity, "twice/1/": ""})
	if err == nil || !strings.Contains(err.Error(), "failed to poll model repository '/nonexistent'") {
		t.Errorf("the missing repository is not reported: %v", err)
	}
	want := "only 1 READY\ntwice - UNAVAILABLE: model appears in two or more repositories\n"
	if got := index(r); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNoAutoComplete(t *testing.T) {
	w := &fakeWorkers{desc: map[string]*worker.DescribeResponse{"named": batching}}
	r, _ := load(t, w, Config{NoAutoComplete: true}, map[string]string{"silent/1/model.onnx": "", "good/config.pbtxt": identity, "good/1/": "",
		"named/config.pbtxt": `platform: "onnxruntime_onnx" input { name: "x" }`, "named/1/model.onnx": ""})
	got := index(r)
	for _, want := range []string{"good 1 READY", "silent - UNAVAILABLE: Not found: failed to open text file for read config.pbtxt",
		"named - UNAVAILABLE: Invalid argument: named/config.pbtxt:1:30: model input 'x' must specify 'data_type' for named"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if w.describe.Load() != 0 {
		t.Error("a model file was described")
	}
}

func TestRetries(t *testing.T) {
	w := &fakeWorkers{fail: func(_ LoadSpec, try int) error {
		if try < 3 {
			return errors.New("busy")
		}
		return nil
	}}
	r, err := load(t, w, Config{LoadRetries: 2}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	if err != nil || !r.Ready() {
		t.Errorf("not loaded at the third try: %v", err)
	}
}

func TestSpec(t *testing.T) {
	w := &fakeWorkers{gpus: []int32{1, 0}}
	_, err := load(t, w, Config{BackendOptions: map[string]map[string]string{"": {"a": "all", "b": "all"}, "onnxruntime": {"b": "own"}}},
		map[string]string{"m/1/model.onnx": "", "m/config.pbtxt": `platform: "onnxruntime_onnx"
			input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
			instance_group [ { count: 2 }, { kind: KIND_CPU host_policy: "p" } ]`})
	if err != nil {
		t.Fatal(err)
	}
	spec := w.loads[0]
	names := ""
	for _, i := range spec.Instances {
		names += i.Name + " "
	}
	if names != "m_0_0_gpu0 m_0_0_gpu1 m_0_1_gpu0 m_0_1_gpu1 m_1_0 m_1_1 " || spec.Instances[1].Device != 1 || spec.Instances[4].HostPolicy != "p" {
		t.Errorf("instances %+v", spec.Instances)
	}
	if !strings.HasSuffix(spec.ModelFile, "/m/1/model.onnx") || spec.Options["a"] != "all" || spec.Options["b"] != "own" {
		t.Errorf("spec %+v", spec)
	}
}

func TestAcquireErrors(t *testing.T) {
	w := &fakeWorkers{fail: func(spec LoadSpec, _ int) error {
		if spec.Name == "failed" {
			return errors.New("no")
		}
		return nil
	}}
	r, _ := load(t, w, Config{}, map[string]string{"m/config.pbtxt": identity, "m/2/": "", "failed/config.pbtxt": identity, "failed/1/": "",
		"bad/config.pbtxt": "x"})
	for _, row := range []struct {
		name, version string
		code          infer.Code
		want          string
	}{
		{"m", "", 0, ""}, {"m", "2", 0, ""}, {"m", "02", 0, ""},
		{"m", "9", infer.NotFound, "Request for unknown model: 'm' version 9 is not found"},
		{"m", "0", infer.NotFound, "Request for unknown model: 'm' version 0 is not found"},
		{"nope", "", infer.NotFound, "Request for unknown model: 'nope' is not found"},
		{"", "", infer.NotFound, "Request for unknown model: '' is not found"},
		{"m", "1abc", infer.InvalidArg, "failed to get model version from specified version string '1abc' (details: stol), version should be an integral value > 0"},
		{"m", "-1", infer.InvalidArg, "invalid model version specified '-1' , version should be an integral value > 0"},
		{"failed", "", infer.Unavailable, "Request for unknown model: 'failed' has no available versions"},
		{"failed", "1", infer.Unavailable, "Request for unknown model: 'failed' version 1 is not at ready state"},
		{"bad", "", infer.Unavailable, "Request for unknown model: 'bad' is not found: it could not be loaded"},
	} {
		m, err := r.Acquire(t.Context(), row.name, row.version)
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s %q: %v", row.name, row.version, err)
		case row.want == "":
			m.Release()
		case err == nil || err.Error() != row.want || infer.CodeOf(err) != row.code:
			t.Errorf("%s %q: got %v, want %v %s", row.name, row.version, err, row.code, row.want)
		case row.code == infer.Unavailable && infer.ReasonOf(err) != infer.ReasonNotReady:
			t.Errorf("%s %q: reason %q", row.name, row.version, infer.ReasonOf(err))
		}
	}
}

func TestReadinessFollowsInstances(t *testing.T) {
	w := &fakeWorkers{}
	news := make(chan struct{}, 100)
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	d := deps(w)
	d.Changed = func() { news <- struct{}{} }
	r := New(Config{Paths: []string{dir}, StrictReadiness: true}, d)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := w.loads[0]
	m, err := r.Acquire(t.Context(), "m", "")
	if err != nil {
		t.Fatal(err)
	}
	s := m.scheduler.(*fakeScheduler)
	spec.Changed(0, false)
	spec.Changed(0, false)
	if !r.Ready() || s.up[0] || !s.up[1] {
		t.Errorf("one of two instances down: ready %v, scheduler %v", r.Ready(), s.up)
	}
	spec.Changed(1, false)
	if ok, err := r.ModelReady("m", ""); ok || err != nil || r.Ready() {
		t.Errorf("no instance: model ready %v, %v, server ready %v", ok, err, r.Ready())
	}
	if m2, err := r.Acquire(t.Context(), "m", ""); err != nil {
		t.Errorf("requests must wait for the instance, got %v", err)
	} else {
		m2.Release()
	}
	for len(news) > 0 {
		<-news
	}
	spec.Changed(1, true)
	if all, up := m.Instances(); all != 2 || up != 1 || !r.Ready() || len(news) != 1 {
		t.Errorf("one instance back: %d of %d, ready %v, %d news", up, all, r.Ready(), len(news))
	}
	m.Release()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.loaded["m/1"].unloaded.Load() != 1 || !s.drained {
		t.Error("not freed, or not drained")
	}
	if got := index(r); got != "m 1 UNAVAILABLE: unloaded\n" || !r.Ready() {
		t.Errorf("after Close: %s ready %v", got, r.Ready())
	}
}

// A version is swapped under requests: none fails, and each old one is freed once,
// after the last request that held it.
func TestSwapUnderLoad(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	r := New(Config{Paths: []string{dir}, Mode: Explicit, Startup: []string{"*"}}, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				m, err := r.Acquire(t.Context(), "m", "1")
				if err != nil {
					t.Error(err)
					return
				}
				if m.loaded.(*fakeLoaded).unloaded.Load() != 0 {
					t.Error("freed while a request holds it")
				}
				m.Release()
			}
		})
	}
	var freed []*fakeLoaded
	for i := range 50 {
		w.mu.Lock()
		freed = append(freed, w.loaded["m/1"])
		w.mu.Unlock()
		write(t, dir, map[string]string{"m/1/weights": strings.Repeat("x", i)})
		if err := r.Load(t.Context(), "m", &Override{}); err != nil {
			t.Error(err)
		}
	}
	stop()
	wg.Wait()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for i, l := range freed {
		if l.unloaded.Load() != 1 {
			t.Errorf("load %d was freed %d times", i, l.unloaded.Load())
		}
	}
}

func TestLabelPaths(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"m/l.txt": "a\r\nb\n\nc", "m/sub/l.txt": "x", "secret": "s", "m/d/": ""})
	symlink(t, dir+"/secret", dir+"/m/out")
	symlink(t, "l.txt", dir+"/m/in")
	symlink(t, "..", dir+"/m/up")
	f := Folder{Name: "m", Dir: dir + "/m"}
	for name, ok := range map[string]bool{"l.txt": true, "sub/l.txt": true, "in": true, "./l.txt": true, "sub/../l.txt": true,
		"out": false, "up/secret": false, "../secret": false, "sub/../../secret": false, "/etc/passwd": false, "": false, ".": false,
		"d": false, "l.txt\x00": false, `..\secret`: false, "nothing": false, dir + "/m/l.txt": false} {
		data, err := f.Read(name, 100)
		if (err == nil) != ok {
			t.Errorf("%q: %q, %v", name, data, err)
		}
		if err != nil && strings.Contains(err.Error(), dir) && !strings.Contains(name, dir) {
			t.Errorf("%q: the error names a folder of the machine: %v", name, err)
		}
	}
	if _, err := f.Read("l.txt", 3); err == nil {
		t.Error("a file over the limit was read")
	}
}
