package modelconfig

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

const (
	own    = `name: "m" backend: "own" version_policy { latest { num_versions: 1 } } optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } } `
	anyIn  = `input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } `
	anyOut = `output { name: "y" data_type: TYPE_INT32 dims: 1 } `
)

// patches are a config, what the backend says of it, and the config or the fault that comes of it.
var patches = []struct{ name, config, patch, want string }{
	{"says nothing", anyIn, ``, anyIn},
	{"silent config", ``, `max_batch_size: 8 ` + anyIn + anyOut + `dynamic_batching { } decoupled: true`,
		`max_batch_size: 8 ` + anyIn + anyOut + `dynamic_batching { preferred_batch_size: 8 } model_transaction_policy { decoupled: true }`},
	{"batch size zero is said", ``, `max_batch_size: 0 ` + anyIn, anyIn},
	{"the same batch size", `max_batch_size: 8`, `max_batch_size: 8`, `max_batch_size: 8`},
	{"a larger batch size", `max_batch_size: 4`, `max_batch_size: 8`, `max_batch_size: 8`},
	{"a smaller batch size", `max_batch_size: 4`, `max_batch_size: 2`,
		"error: c:1:1: configuration specified max_batch_size 4, but the backend of model 'm' specified max_batch_size 2"},
	{"no batch dimension", `max_batch_size: 4`, `max_batch_size: 0`,
		"error: c:1:1: configuration specified max_batch_size 4, but the backend of model 'm' specified max_batch_size 0"},
	{"negative batch size", ``, `max_batch_size: -1`, "error: the backend of model 'm' specifies max_batch_size -1"},
	{"tensors in part", `input { name: "x" } output { name: "y" label_filename: "l" }`, anyIn + anyOut,
		anyIn + `output { name: "y" data_type: TYPE_INT32 dims: 1 label_filename: "l" }`},
	{"another tensor", `input { name: "z" data_type: TYPE_BOOL dims: 1 }`, anyIn, `input { name: "z" data_type: TYPE_BOOL dims: 1 } ` + anyIn},
	{"optional inputs", anyIn, `input { name: "x" optional: true } input { name: "o" data_type: TYPE_BOOL dims: 1 optional: true }`,
		`input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] optional: true } input { name: "o" data_type: TYPE_BOOL dims: 1 optional: true }`},
	{"ragged input and batch input", anyIn, `input { name: "x" allow_ragged_batch: true } batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "x" }`,
		`input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] allow_ragged_batch: true } batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "x" }`},
	{"batch input of the config", anyIn + `batch_input { target_name: "c" data_type: TYPE_INT32 source_input: "x" }`,
		`batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "x" }`, anyIn + `batch_input { target_name: "c" data_type: TYPE_INT32 source_input: "x" }`},
	{"batch output", anyOut, `batch_output { target_name: "y" source_input: "x" }`, anyOut + `batch_output { target_name: "y" source_input: "x" }`},
	{"datatype", "max_batch_size: 1\ninput { name: \"x\" data_type: TYPE_INT32 }", anyIn,
		"error: c:2:19: unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32"},
	{"dims of an output", `output { name: "y" dims: [2, 3] }`, anyOut,
		"error: model 'm', tensor 'y': the model expects dims [1] but the model configuration specifies dims [2,3]"},
	{"format", `input { name: "x" format: FORMAT_NCHW }`, `input { name: "x" format: FORMAT_NHWC }`,
		"error: model 'm', tensor 'x': the model expects format FORMAT_NHWC but the model configuration specifies format FORMAT_NCHW"},
	{"two faults", `max_batch_size: 4 input { name: "x" data_type: TYPE_INT32 }`, `max_batch_size: 2 ` + anyIn, "error: max_batch_size 2; c:1:37: unable to load model 'm'"},
	{"decoupled, as the config", `model_transaction_policy { decoupled: true }`, `decoupled: true`, `model_transaction_policy { decoupled: true }`},
	{"not decoupled", `model_transaction_policy { decoupled: true }`, `decoupled: false`,
		"error: model 'm': the backend specifies decoupled false but the model configuration specifies decoupled true"},
	{"decoupled against the config", `model_transaction_policy { decoupled: false }`, `decoupled: true`,
		"error: model 'm': the backend specifies decoupled true but the model configuration specifies decoupled false"},
	{"scheduler of the config", `max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }`, `dynamic_batching { preferred_batch_size: 4 }`,
		`max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }`},
	{"sequence batching", ``, `sequence_batching { max_sequence_idle_microseconds: 5 }`, `sequence_batching { max_sequence_idle_microseconds: 5 }`},
	{"another scheduler", `sequence_batching { }`, `dynamic_batching { }`, "error: c:1:1: Configuration specified scheduling_choice as 'sequence_batching', " +
		"but the backend of model 'm' tries to set scheduling_choice as 'dynamic_batching'"},
	{"two schedulers", ``, `sequence_batching { } dynamic_batching { }`, "error: the backend of model 'm' specifies both 'dynamic_batching' and 'sequence_batching'"},
	{"inputs that no client sends", `sequence_batching { control_input { name: "START" } }`, `input { name: "START" data_type: TYPE_INT32 dims: 1 } ` + anyIn,
		`sequence_batching { control_input { name: "START" } max_sequence_idle_microseconds: 1000000 } ` + anyIn},
}

func TestPatch(t *testing.T) {
	for _, row := range patches {
		t.Run(row.name, func(t *testing.T) {
			cfg, patch := &modelconfig.ModelConfig{}, &worker.ConfigPatch{}
			cfg, src, err := Parse("c", []byte(row.config))
			if err != nil {
				t.Fatal(err)
			}
			if err := prototext.Unmarshal([]byte(row.patch), patch); err != nil {
				t.Fatal(err)
			}
			cfg.Backend = "own"
			before := proto.CloneOf(patch)
			_, err = Complete(cfg, &worker.DescribeResponse{Patch: patch}, Options{Folder: "m", Source: src, Tensors: true})
			if !proto.Equal(patch, before) {
				t.Errorf("the patch became %v", patch)
			}
			checkPatched(t, cfg, err, row.want)
		})
	}
}

func checkPatched(t *testing.T, cfg *modelconfig.ModelConfig, err error, want string) {
	t.Helper()
	if text, bad := strings.CutPrefix(want, "error: "); bad {
		if err == nil || !strings.Contains(err.Error(), text) || infer.CodeOf(err) != infer.InvalidArg {
			t.Fatalf("got %v, want %s", err, text)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	all := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(own+want), all); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(cfg, all) {
		t.Errorf("got  %v\nwant %v", cfg, all)
	}
}

// Without auto-completion a backend's word changes nothing.
func TestPatchDisabled(t *testing.T) {
	cfg := &modelconfig.ModelConfig{Backend: "own"}
	_, err := Complete(cfg, &worker.DescribeResponse{Patch: &worker.ConfigPatch{MaxBatchSize: proto.Int32(8)}}, Options{Folder: "m"})
	checkPatched(t, cfg, err, "")
}

// A backend that describes tensors without end is refused.
func TestPatchTooLarge(t *testing.T) {
	patch := &worker.ConfigPatch{}
	for i := range maxPatchTensors + 1 {
		patch.Input = append(patch.Input, &modelconfig.ModelInput{Name: fmt.Sprint(i)})
	}
	cfg := &modelconfig.ModelConfig{Backend: "own"}
	_, err := Complete(cfg, &worker.DescribeResponse{Patch: patch}, Options{Folder: "m", Tensors: true})
	checkPatched(t, cfg, err, "error: the backend of model 'm' describes 10001 tensors, the most is 10000")
	if len(cfg.Input) > 0 {
		t.Error("inputs were taken all the same")
	}
}

// Whatever a worker answers is merged or refused, and the worker's message stays as it was.
func FuzzPatch(f *testing.F) {
	for _, row := range patches {
		patch := &worker.ConfigPatch{}
		if err := prototext.Unmarshal([]byte(row.patch), patch); err != nil {
			f.Fatal(err)
		}
		data, err := proto.Marshal(patch)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(row.config, data)
	}
	f.Fuzz(func(t *testing.T, config string, data []byte) {
		cfg, src, err := Parse("c", []byte(config))
		patch := &worker.ConfigPatch{}
		if err != nil || proto.Unmarshal(data, patch) != nil {
			return
		}
		before := proto.CloneOf(patch)
		opts := Options{Folder: "m", Source: src, Tensors: true, Known: known(t), Backends: map[string]*worker.Backend{"identity": {Name: "identity"}}}
		if _, err := Complete(cfg, &worker.DescribeResponse{Patch: patch}, opts); err == nil {
			_ = Validate(cfg, opts)
		}
		if !proto.Equal(patch, before) {
			t.Fatalf("the patch became %v, from %v", patch, before)
		}
	})
}
