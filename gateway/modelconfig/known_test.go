package modelconfig

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// speaking is a worker's backend that says all of itself.
func speaking() *worker.Backend {
	return &worker.Backend{Name: "own", Gpu: true, UnbatchedOptional: true,
		Placements: []*worker.Placement{{Kind: worker.Placement_GPU, Count: 3}},
		Formats: []*worker.ModelFormat{{Platform: "own_folder", Filename: "net", Kind: worker.ModelFormat_FOLDER, ShapeTensors: true, Profiles: true},
			{Platform: "own_file", Filename: "net.own", Kind: worker.ModelFormat_FILE, Default: true}}}
}

// A backend that the gateway has never heard of is treated by its own word.
func TestWordOfBackend(t *testing.T) {
	for _, row := range []struct {
		name, config string
		files        []File
		gpus         []int32
		want         string // backend|platform|filename|kind count, or the fault
	}{
		{"by a file", ``, []File{{Name: "net.own"}}, []int32{0}, "own|own_file|net.own|KIND_GPU 3"},
		{"by a folder", ``, []File{{Name: "net", Dir: true}}, []int32{0}, "own|own_folder|net|KIND_GPU 3"},
		{"a file in place of the folder", ``, []File{{Name: "net"}}, []int32{0}, "Could not determine backend"},
		{"by its name", `backend: "own"`, nil, []int32{0}, "own|own_file|net.own|KIND_GPU 3"},
		{"by its platform", `platform: "own_folder"`, nil, []int32{0}, "own|own_folder|net|KIND_GPU 3"},
		{"by the file name", `default_model_filename: "net.own"`, nil, []int32{0}, "own|own_file|net.own|KIND_GPU 3"},
		{"count of the config", `backend: "own" instance_group { count: 5 }`, nil, []int32{0}, "own|own_file|net.own|KIND_GPU 5"},
		{"a kind it does not make", `backend: "own" instance_group { kind: KIND_CPU }`, nil, []int32{0}, "has kind KIND_CPU, backend 'own' makes instances of kind KIND_GPU"},
		{"no GPU", `backend: "own"`, nil, nil, "has kind KIND_CPU, backend 'own' makes instances of kind KIND_GPU"},
		{"its pairs", `backend: "own" platform: "onnxruntime_onnx"`, nil, []int32{0}, "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, own"},
		{"near its platform", `platform: "own_fil"`, nil, []int32{0}, `did you mean "own_file"?`},
		{"optional inputs", `backend: "own" max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 1 optional: true }`, nil, []int32{0},
			"optional input 'x' is not supported for models that support batching"},
		{"shape tensors", `platform: "own_folder" input { name: "x" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }`, nil, []int32{0}, "own|own_folder|net|KIND_GPU 3"},
		{"shape tensors of another format", `platform: "own_file" input { name: "x" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }`, nil, []int32{0}, "shape tensors are only supported"},
		{"profiles", `platform: "own_folder" instance_group { profile: "1" }`, nil, []int32{0}, "own|own_folder|net|KIND_GPU 3"},
		{"profiles of another format", `platform: "own_file" instance_group { profile: "1" }`, nil, []int32{0}, "specifies profile field"},
	} {
		t.Run(row.name, func(t *testing.T) {
			cfg, src, err := Parse("c", []byte(row.config))
			if err != nil {
				t.Fatal(err)
			}
			served := map[string]*worker.Backend{"own": speaking()}
			opts := Options{Folder: "m", Source: src, Files: row.files, GPUs: row.gpus, Backends: served, Known: known(t).With(served)}
			if _, err = Complete(cfg, nil, opts); err == nil {
				err = Validate(cfg, opts)
			}
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				g := cfg.InstanceGroup[0]
				got = cfg.Backend + "|" + cfg.Platform + "|" + cfg.DefaultModelFilename + "|" + g.Kind.String() + " " + string(rune('0'+g.Count))
			}
			if !strings.Contains(got, row.want) {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Any kind of instance may be made by a backend that says nothing, and the model's own by all.
func TestPlacements(t *testing.T) {
	for _, row := range []struct {
		places []*worker.Placement
		gpus   bool
		want   modelconfig.ModelInstanceGroup_Kind
	}{
		{nil, true, modelconfig.ModelInstanceGroup_KIND_AUTO},
		{[]*worker.Placement{{Kind: worker.Placement_GPU}, {Kind: worker.Placement_CPU}}, true, modelconfig.ModelInstanceGroup_KIND_GPU},
		{[]*worker.Placement{{Kind: worker.Placement_GPU}, {Kind: worker.Placement_CPU}}, false, modelconfig.ModelInstanceGroup_KIND_CPU},
		{[]*worker.Placement{{Kind: worker.Placement_CPU}, {Kind: worker.Placement_GPU}}, true, modelconfig.ModelInstanceGroup_KIND_CPU},
		{[]*worker.Placement{{Kind: worker.Placement_MODEL}}, true, modelconfig.ModelInstanceGroup_KIND_MODEL},
		{[]*worker.Placement{{Kind: 9}}, true, modelconfig.ModelInstanceGroup_KIND_AUTO},
	} {
		if got := preferred(row.places, row.gpus); got != row.want {
			t.Errorf("%v, GPUs %v: got %v, want %v", row.places, row.gpus, got, row.want)
		}
	}
}

func TestKnownWith(t *testing.T) {
	table := known(t)
	silent := &worker.Backend{Name: "onnxruntime", Version: "9"}
	all := table.With(map[string]*worker.Backend{"onnxruntime": silent, "own": speaking(), "a": {Name: "a"}})
	if b := all.Find("onnxruntime"); b.GetVersion() != "9" || len(b.GetFormats()) != 1 || !b.GetUnbatchedOptional() || len(b.GetPlacements()) != 2 {
		t.Errorf("a worker that says nothing of model files: %v", b)
	}
	if len(silent.Formats) > 0 {
		t.Error("the worker's own message was changed")
	}
	spoken := &worker.Backend{Name: "onnxruntime", Formats: []*worker.ModelFormat{{Filename: "net.onnx"}}}
	if b := table.With(map[string]*worker.Backend{"onnxruntime": spoken}).Find("onnxruntime"); b != spoken {
		t.Errorf("a worker's word does not count: %v", b)
	}
	if n := len(table); all[n].GetName() != "a" || all[n+1].GetName() != "own" {
		t.Errorf("got %v", all[n:])
	}
	if !all.ReadsFiles("own") || all.ReadsFiles("a") || all.ReadsFiles("nobody") {
		t.Error("who reads model files is not told")
	}
	if names := all.Filenames(); !slices.Contains(names, "net.own") || slices.Contains(names, "") {
		t.Errorf("file names: %v", names)
	}
}
