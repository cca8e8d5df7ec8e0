package modelconfig

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend/triton"
)

const fp32 = modelconfig.DataType_TYPE_FP32

func info(name string, dt modelconfig.DataType, shape ...int64) *worker.TensorInfo {
	return &worker.TensorInfo{Name: name, DataType: dt, Shape: shape}
}

// known are Triton's backends.
func known(t testing.TB) Known {
	t.Helper()
	all, err := triton.Backends()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	batching = &worker.DescribeResponse{Inputs: []*worker.TensorInfo{info("x", fp32, -1, 512)},
		Outputs: []*worker.TensorInfo{info("y", fp32, -1, 128), info("s", fp32, -1)}}
	fixed = &worker.DescribeResponse{Inputs: []*worker.TensorInfo{info("x", fp32, 1, 3), info("n", modelconfig.DataType_TYPE_INT64)},
		Outputs: []*worker.TensorInfo{info("y", fp32, 1, 2)}}
	twoOutputs = &worker.DescribeResponse{Inputs: []*worker.TensorInfo{info("x", fp32, 2)},
		Outputs: []*worker.TensorInfo{info("out0", fp32, 2), info("out1", fp32, 2)}}
	onnx = []File{{Name: "model.onnx"}}
)

// defaults is what every completed config of an ONNX model has.
const defaults = ` platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx" version_policy { latest { num_versions: 1 } }
	optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } } `
const cpu = ` instance_group { name: "m" kind: KIND_CPU count: 2 } `

var completions = []struct {
	name, config string
	desc         *worker.DescribeResponse
	opts         Options
	want         string // text of the completed config, defaults added; or the error
}{
	{"silent", ``, batching, Options{}, cpu + `max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }
		input { name: "x" data_type: TYPE_FP32 dims: 512 } output { name: "y" data_type: TYPE_FP32 dims: 128 }
		output { name: "s" data_type: TYPE_FP32 dims: 1 reshape { } }`},
	{"option", ``, batching, Options{DefaultMaxBatchSize: 16}, cpu + `max_batch_size: 16 dynamic_batching { preferred_batch_size: 16 }
		input { name: "x" data_type: TYPE_FP32 dims: 512 } output { name: "y" data_type: TYPE_FP32 dims: 128 }
		output { name: "s" data_type: TYPE_FP32 dims: 1 reshape { } }`},
	{"batch of one gets no batcher", `max_batch_size: 1`, batching, Options{}, cpu + `max_batch_size: 1
		input { name: "x" data_type: TYPE_FP32 dims: 512 } output { name: "y" data_type: TYPE_FP32 dims: 128 }
		output { name: "s" data_type: TYPE_FP32 dims: 1 reshape { } }`},
	{"no batch dimension", ``, fixed, Options{}, cpu + `input { name: "x" data_type: TYPE_FP32 dims: [1, 3] }
		input { name: "n" data_type: TYPE_INT64 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: [1, 2] }`},
	{"explicit zero", `max_batch_size: 0`, batching, Options{}, cpu + `input { name: "x" data_type: TYPE_FP32 dims: [-1, 512] }
		output { name: "y" data_type: TYPE_FP32 dims: [-1, 128] } output { name: "s" data_type: TYPE_FP32 dims: -1 }`},
	{"outputs only", `max_batch_size: 8 output { name: "y" data_type: TYPE_FP32 dims: 128 }`, batching, Options{}, cpu + `max_batch_size: 8
		dynamic_batching { preferred_batch_size: 8 } input { name: "x" data_type: TYPE_FP32 dims: 512 } output { name: "y" data_type: TYPE_FP32 dims: 128 }`},
	{"names only", `input { name: "x" } output { name: "y" label_filename: "l" }`, batching, Options{}, cpu + `max_batch_size: 4
		dynamic_batching { preferred_batch_size: 4 } input { name: "x" data_type: TYPE_FP32 dims: 512 }
		output { name: "y" label_filename: "l" data_type: TYPE_FP32 dims: 128 }`},
	{"complete configs are left alone", `input { name: "x" data_type: TYPE_FP32 dims: [-1, 512] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 128] }`,
		batching, Options{}, cpu + `input { name: "x" data_type: TYPE_FP32 dims: [-1, 512] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 128] }`},
	{"whole rank given", `input { name: "x" data_type: TYPE_FP32 dims: [-1, 512] }`, batching, Options{},
		cpu + `input { name: "x" data_type: TYPE_FP32 dims: [-1, 512] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 128] }
		output { name: "s" data_type: TYPE_FP32 dims: -1 }`},
	{"disabled", `instance_group { } instance_group { count: 3 kind: KIND_CPU }`, nil, Options{}, `instance_group { name: "m_0" kind: KIND_CPU count: 2 }
		instance_group { name: "m_1" kind: KIND_CPU count: 3 }`},
	{"gpus", ``, nil, Options{GPUs: []int32{0, 1}, Backends: map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime", Gpu: true}}},
		`instance_group { name: "m" kind: KIND_GPU count: 1 gpus: [0, 1] }`},
	{"auto with an absent gpu", `instance_group { gpus: 5 count: 1 }`, nil, Options{GPUs: []int32{0}, Backends: map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime", Gpu: true}}},
		`instance_group { name: "m_0" kind: KIND_CPU count: 1 gpus: 5 }`},
	{"batch wanted, not possible", `max_batch_size: 8`, fixed, Options{}, "error: autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"},
	{"datatype", `input { name: "x" data_type: TYPE_INT32 dims: 512 } max_batch_size: 2`, batching, Options{},
		"error: configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32"},
	{"dims", `max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 511 }`, batching, Options{},
		"error: model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,512]) but the model configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,511])"},
	{"unknown output", `output { name: "Y" data_type: TYPE_FP32 dims: 128 }`, batching, Options{}, `error: unexpected inference output 'Y', allowed outputs are: s, y; did you mean "y"?`},
	{"unknown output beside a known one", `output { name: "out0" data_type: TYPE_FP32 dims: 2 } output { name: "out2" data_type: TYPE_FP32 dims: 2 }`, twoOutputs, Options{},
		`error: unexpected inference output 'out2', allowed outputs are: out0, out1; did you mean "out1"?`},
	{"fewer inputs", `input { name: "x" data_type: TYPE_FP32 dims: [1, 3] } output { name: "y" data_type: TYPE_FP32 dims: [1, 2] }`, fixed, Options{},
		"error: unable to load model 'm', configuration expects 1 inputs, model provides 2"},
	{"scalar", `input { name: "n" data_type: TYPE_INT64 dims: 2 }`, fixed, Options{}, "error: scalar tensor 'n', should only provide 1"},
}

func TestComplete(t *testing.T) {
	for _, row := range completions {
		t.Run(row.name, func(t *testing.T) {
			cfg, src, err := Parse("config.pbtxt", []byte(row.config))
			if err != nil {
				t.Fatal(err)
			}
			row.opts.Folder, row.opts.Files, row.opts.Source, row.opts.Tensors, row.opts.Known = "m", onnx, src, true, known(t)
			if row.opts.Backends == nil {
				row.opts.Backends = map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime"}}
			}
			_, err = Complete(cfg, row.desc, row.opts)
			if text, bad := strings.CutPrefix(row.want, "error: "); bad {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Fatalf("got error %v, want %s", err, text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &modelconfig.ModelConfig{}
			if err := prototext.Unmarshal([]byte(`name: "m"`+defaults+row.want), want); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(cfg, want) {
				t.Errorf("got  %v\nwant %v", cfg, want)
			}
		})
	}
}

func TestCompleteBackend(t *testing.T) {
	for _, row := range []struct {
		folder, config string
		files          []File
		want           string // backend|platform|filename or the error
	}{
		{"m", ``, []File{{Name: "model.onnx", Dir: true}}, "onnxruntime|onnxruntime_onnx|model.onnx"},
		{"m", ``, []File{{Name: "model.plan"}}, "tensorrt|tensorrt_plan|model.plan"},
		{"m", ``, []File{{Name: "model.savedmodel", Dir: true}}, "tensorflow|tensorflow_savedmodel|model.savedmodel"},
		{"m", ``, []File{{Name: "model.pt"}}, "pytorch|pytorch_libtorch|model.pt"},
		{"m", ``, []File{{Name: "model.py"}}, "python||model.py"},
		{"m", `platform: "onnxruntime_onnx"`, nil, "onnxruntime|onnxruntime_onnx|model.onnx"},
		{"m", `platform: "libtorch"`, nil, "pytorch|libtorch|model.pt"},
		{"m", `backend: "onnxruntime" default_model_filename: "net.onnx"`, nil, "onnxruntime|onnxruntime_onnx|net.onnx"},
		{"m", `backend: "pytorch"`, nil, "pytorch|pytorch_libtorch|model.pt"},
		{"m", `backend: "identity"`, nil, "identity||"},
		{"m", `default_model_filename: "model.xml"`, nil, "openvino||model.xml"},
		{"m", `ensemble_scheduling { }`, nil, "|ensemble|"},
		{"m.identity", ``, nil, "identity||model.identity"},
		{"m", ``, []File{{Name: "weights.bin"}}, "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration."},
	} {
		cfg, src, err := Parse("c", []byte(row.config))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Complete(cfg, nil, Options{Known: known(t), Folder: row.folder, Files: row.files, Source: src})
		got := cfg.Backend + "|" + cfg.Platform + "|" + cfg.DefaultModelFilename
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, row.want) {
			t.Errorf("%s %s: got %s, want %s", row.folder, row.config, got, row.want)
		}
	}
}
