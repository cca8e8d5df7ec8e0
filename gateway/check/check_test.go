package check

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend/triton"
)

// workers describe one model file: x [-1,2] → y [-1,3]. Loading is not asked of them.
type workers struct{ repository.Workers }

func (workers) Backends() map[string]*worker.Backend {
	return map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime", Gpu: true}, "identity": {Name: "identity"}}
}
func (workers) Devices() []repository.Device { return []repository.Device{{}, {GPU: true, ID: 1}} }
func (workers) Describe(_ context.Context, spec *repository.LoadSpec) (*worker.DescribeResponse, error) {
	if spec.Backend != "onnxruntime" {
		return nil, infer.Errorf(infer.Unsupported, "identity")
	}
	if info, err := os.Stat(spec.ModelFile); err != nil || info.Size() > 0 {
		return nil, infer.Errorf(infer.InvalidArg, "model file 1/model.onnx is no ONNX model")
	}
	tensor := func(name string, n int64) []*worker.TensorInfo {
		return []*worker.TensorInfo{{Name: name, DataType: configpb.DataType_TYPE_FP32, Shape: []int64{-1, n}}}
	}
	return &worker.DescribeResponse{Inputs: tensor("x", 2), Outputs: tensor("y", 3)}, nil
}

// known are Triton's backends.
func known(t *testing.T) modelconfig.Known {
	t.Helper()
	all, err := triton.Backends()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		full := filepath.Join(dir, path)
		folder := filepath.Dir(full)
		if strings.HasSuffix(path, "/") {
			folder = full
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if folder != full {
			if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func text(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const complete = `platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }
`

func TestReport(t *testing.T) {
	dir := tree(t, map[string]string{
		"a/1/model.onnx": "", "a/2/model.onnx": "",
		"b/config.pbtxt": complete + "dynamic_batching { preferred_batch_size: 16 }\nmax_queue: 3\n", "b/1/model.onnx": "",
		"c/config.pbtxt": complete, "c/1/model.onnx": "",
	})
	r := Check(t.Context(), repository.Config{Known: known(t), Paths: []string{dir}}, workers{})
	want := `ok     a
         completed  the whole config: there is no config.pbtxt
                    backend "onnxruntime", from the file model.onnx
                    platform "onnxruntime_onnx", from the file model.onnx
                    default_model_filename "model.onnx", from the file model.onnx
                    instance_group KIND_GPU, 1 instance(s)
                    max_batch_size 4, since every tensor's first dimension is variable
                    dynamic_batching
                    input "x" TYPE_FP32 [2]
                    output "y" TYPE_FP32 [3]
         loads      version 2 with onnxruntime: 1 instance on GPU 1
         batching   requests that wait leave together when an instance is free, up to 4 rows
                    no request waits for others: what is there leaves
         ignored    version 1: the version policy leaves it out

WRONG  b
         wrong      b/config.pbtxt:5:1: unknown field "max_queue" in ModelConfig

WRONG  c
         completed  backend "onnxruntime", from platform "onnxruntime_onnx"
                    default_model_filename "model.onnx", from platform "onnxruntime_onnx"
                    instance_group KIND_GPU, 1 instance(s)
         wrong      c/config.pbtxt:3:49: label file of output 'y': failed to open text file for read 'labels.txt': no such file

3 models, 2 with faults.
`
	if got := text(t, r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.OK() {
		t.Error("OK")
	}
}

func TestNearMisses(t *testing.T) {
	for _, row := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"config.pbxt", map[string]string{"m/config.pbxt": complete, "m/1/model.onnx": ""}, "config.pbxt is not read: the config's name is config.pbtxt"},
		{"Config.pbtxt", map[string]string{"m/Config.pbtxt": complete, "m/1/model.onnx": ""}, "Config.pbtxt is not read: the config's name is config.pbtxt"},
		{"other name", map[string]string{"m/config.pbtxt": `backend: "onnxruntime"`, "m/1/net.onnx": ""}, `1/net.onnx is not read: rename it to model.onnx, or set default_model_filename: "net.onnx"`},
		{"other name, no config", map[string]string{"m/1/net.onnx": ""}, `1/net.onnx has none of the names that tell the backend: rename it to model.onnx, or set backend and default_model_filename: "net.onnx"`},
		{"leading zero", map[string]string{"m/01/model.onnx": ""}, "the folder 01 is no version: versions are whole numbers that don't begin with 0; rename it to 1"},
		{"v1", map[string]string{"m/v1/model.onnx": ""}, "the folder v1 is no version: versions are whole numbers that don't begin with 0; rename it to 1"},
		{"1.0", map[string]string{"m/1.0/model.onnx": ""}, "rename it to 1"},
		{"named folder", map[string]string{"m/model/model.onnx": ""}, "the folder model holds model.onnx but is no version: rename it to 1"},
		{"empty", map[string]string{"m/config.pbtxt": `backend: "onnxruntime"`, "m/1/": ""}, "the version folder 1 is empty"},
		{"too high", map[string]string{"m/model.onnx": ""}, "model.onnx lies in the model folder and is not read: model files lie in a version folder, 1/model.onnx"},
		{"config in version", map[string]string{"m/1/config.pbtxt": ""}, "1/config.pbtxt is not read: the config lies in the model folder, beside the versions"},
		{"no versions", map[string]string{"m/config.pbtxt": `backend: "identity"`}, "there is no version folder: put the model file into m/1"},
		{"too deep", map[string]string{"models/m/config.pbtxt": complete, "models/m/1/model.onnx": ""}, "m holds a config.pbtxt: models lie one folder higher, directly in the repository"},
		{"no repository", map[string]string{"config.pbtxt": complete, "1/model.onnx": ""}, "looks like a model folder: a repository is the folder around model folders"},
		{"empty repository", map[string]string{"README": ""}, "no model folders in "},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, row.files)}}, nil)
			if got := text(t, r); !strings.Contains(got, row.want) {
				t.Errorf("got\n%s\nwant %s", got, row.want)
			}
			if r.OK() && row.name != "config.pbxt" && row.name != "Config.pbtxt" {
				t.Error("OK")
			}
		})
	}
}

// Hints must not send people the wrong way.
func TestNoFalseHints(t *testing.T) {
	for name, row := range map[string]struct {
		files map[string]string
		not   string
	}{
		"the file's name is right": {map[string]string{"m/config.pbtxt": `platform: "onnxruntime"`, "m/1/model.onnx": ""}, "rename it"},
		"unreadable config":        {map[string]string{"m/config.pbtxt": `platfrom: "x"`, "m/1/model.onnx": ""}, "hint"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(t, Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, row.files)}}, workers{})); strings.Contains(got, row.not) {
				t.Errorf("got\n%s\nwant no %q", got, row.not)
			}
		})
	}
	files := map[string]string{"m/1/model.onnx": ""}
	got := text(t, Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, files), tree(t, files)}}, workers{}))
	if strings.Contains(got, "there is no version folder") {
		t.Errorf("duplicates: got\n%s", got)
	}
}

func TestWithoutWorkers(t *testing.T) {
	dir := tree(t, map[string]string{"m/config.pbtxt": complete + "version_policy { specific { versions: [1, 7] } }", "m/1/model.onnx": "broken", "m/labels.txt": "a"})
	r := Check(t.Context(), repository.Config{Known: known(t), Paths: []string{dir}}, nil)
	got := text(t, r)
	for _, want := range []string{"loads      version 1 with onnxruntime\n", "No worker was asked: model files were not opened",
		"m/config.pbtxt:4:1: version 7 is specified for model 'm', but the version directory is not present"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	if got := text(t, Check(t.Context(), repository.Config{Known: known(t), Paths: []string{dir}}, workers{})); !strings.Contains(got, "model file 1/model.onnx is no ONNX model") {
		t.Errorf("with workers, got\n%s", got)
	}
}

func TestDuplicates(t *testing.T) {
	files := map[string]string{"m/config.pbtxt": `backend: "identity"`, "m/1/": ""}
	a, b := tree(t, files), tree(t, files)
	got := text(t, Check(t.Context(), repository.Config{Known: known(t), Paths: []string{a, b, "/nonexistent"}}, workers{}))
	for _, want := range []string{"model appears in two or more repositories", "it is in " + a + "/m and in " + b + "/m: remove or rename one",
		"WRONG  failed to poll model repository '/nonexistent'"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
}

// Check is Server.Check for a server without further flags.
func Check(ctx context.Context, cfg repository.Config, w repository.Workers) *Report {
	return (&Server{}).Check(ctx, cfg, w)
}
