package modelconfig

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

const io = `input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 } `

var validations = []struct{ name, config, want string }{
	{"good", io + `max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 8] }`, ""},
	{"good reshape", `max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] } }
		output { name: "y" data_type: TYPE_FP32 dims: 1 reshape { } }`, ""},
	{"name", `name: "other"`, "c:1:1: unexpected directory name 'm' for model 'other', directory name must equal model name"},
	{"max batch", `max_batch_size: -1`, "'max_batch_size' must be non-negative value for m"},
	{"preferred", io + `max_batch_size: 8 dynamic_batching { preferred_batch_size: 16 }`, "dynamic batching preferred size must be <= max batch size for m"},
	{"preferred zero", io + `max_batch_size: 8 dynamic_batching { preferred_batch_size: 0 }`, "dynamic batching preferred size must be positive for m"},
	{"delay", io + `dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }`, "is more than a day"},
	{"priority", io + `dynamic_batching { priority_levels: 2 }`, "default priority level must be in range [1, 2] for m"},
	{"fairness", io + `dynamic_batching { priority_levels: 2 default_priority_level: 1 } parameters { key: "priority_fairness" value { string_value: "0" } }`,
		"parameter 'priority_fairness' is '0' for m, want a whole number from 1 on"},
	{"priority policy", io + `dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} } }`,
		"priority queue policy must have priority level in range [1, 2] for m"},
	{"ordering", io + `dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }`, "Only one priority level is allowed"},
	{"ordering delay", io + `dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }`,
		"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"},
	{"no dtype", `input { name: "x" dims: 1 }`, "model input 'x' must specify 'data_type' for m"},
	{"no dims", `output { name: "x" data_type: TYPE_FP32 }`, "model output 'x' must specify 'dims' for m"},
	{"no name", `input { data_type: TYPE_FP32 }`, "model input must specify 'name' for m"},
	{"zero dim", "input {\n name: \"x\" data_type: TYPE_FP32\n dims: [1, 0] }", "c:3:2: model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m"},
	{"rank", `input { name: "x" data_type: TYPE_FP32 dims: [` + strings.Repeat("1,", 40) + `1] }`, "has 41 dimensions, the most is 31"},
	{"overflow", `input { name: "x" data_type: TYPE_FP32 dims: [9000000000, 9000000000] reshape { shape: [1] } }`, "more elements than fit"},
	{"same name", io + io, "model input 'x' is given twice for m"},
	{"reshape", `input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [3] } }`, "model input 'x' has different size for dims and reshape for m"},
	{"reshape runs", `input { name: "x" data_type: TYPE_FP32 dims: [2, -1, 3] reshape { shape: [3, -1, 2] } }`, "has different size for dims and reshape"},
	{"reshape count", `input { name: "x" data_type: TYPE_FP32 dims: [-1, -1] reshape { shape: [-1] } }`, "has different number of variable-size dimensions for dims and reshape"},
	{"empty reshape", `input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { } }`, "cannot have empty reshape for non-batching model"},
	{"format", `input { name: "x" data_type: TYPE_FP32 dims: 1 format: FORMAT_NCHW }`, "model input NHWC/NCHW require 3 dims for m"},
	{"shape tensor", `input { name: "x" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }`, "shape tensors are only supported for TensorRT platform"},
	{"optional", `max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 1 optional: true }`, "optional input 'x' is not supported for models that support batching"},
	{"label", `output { name: "x" data_type: TYPE_FP32 dims: 1 label_filename: "../l.txt" }`, "label file path '../l.txt' for output 'x' in model 'm' is outside model directory"},
	{"label absolute", `output { name: "x" data_type: TYPE_FP32 dims: 1 label_filename: "/etc/passwd" }`, "is outside model directory"},
	{"file name", `default_model_filename: "../../x"`, `default_model_filename "../../x" must be a path inside the version folder`},
	{"group count", `instance_group { count: -2 }`, "instance group m_0 of model m has count -2, which must be in range [1, 1024]"},
	{"group counts", strings.Repeat(`instance_group { count: 1024 } `, 17), "model m has 17408 instances in its 17 instance groups, the most is 16384"},
	{"huge count", `instance_group { count: 2147483647 }`, "model m has 2147483647 instances in its 1 instance groups, the most is 16384"},
	{"group gpus", `instance_group { kind: KIND_CPU gpus: 0 }`, "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"},
	{"group no gpu", `instance_group { kind: KIND_GPU }`, "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"},
	{"profile", `instance_group { profile: "1" }`, "specifies profile field which is only supported for TensorRT models"},
	{"pair", `platform: "tensorrt_plan"`, "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime"},
	{"ensemble backend", `platform: "ensemble"`, "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"},
	{"versions", `version_policy { latest { } }`, "num_versions >= 1"},
	{"specific", `version_policy { specific { versions: 0 } }`, "version 0 is not a positive number"},
	{"cache", `model_transaction_policy { decoupled: true } response_cache { enable: true }`, "Response Cache does not currently support model m with 'decoupled' transaction policy."},
	{"cache sequence", `sequence_batching { } response_cache { enable: true }`, "with sequence batching scheduler."},
	{"corrid", `sequence_batching { control_input { name: "c" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }`, "unexpected data type for control CONTROL_SEQUENCE_CORRID for m."},
	{"control", `sequence_batching { control_input { name: "c" control { kind: CONTROL_SEQUENCE_START int32_false_true: 1 } } }`, "'int32_false_true' must have exactly 2 entries"},
	{"state type", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_FP32 dims: 1 zero_data: true } } }`, "'initial_state' field of state 'SI' does not match the state data type."},
	{"state name", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { data_type: TYPE_INT32 dims: 1 zero_data: true } } }`, "Field 'name' must be set when using initial_state for state input 'SI'."},
	{"state rank", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_INT32 dims: [1, 1] zero_data: true } } }`, "doesn't match the size of 'state' dimensions for state input 'SI'. 2 != 1"},
	{"state dim", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_INT32 dims: 2 zero_data: true } } }`, "doesn't match 'state' dim description. 2 != 1"},
	{"state variable", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: -1 initial_state { name: "i" data_type: TYPE_INT32 dims: -1 zero_data: true } } }`, "'SI' contains variable dimensions."},
	{"state data", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_INT32 dims: 1 } } }`, "initial_state setting expects state'SI' to have state_data set"},
	{"state file", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_INT32 dims: 1 data_file: "../x" } } }`, "is outside model directory"},
	{"state twice", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 initial_state { name: "i" data_type: TYPE_INT32 dims: 1 zero_data: true } initial_state { name: "j" } } }`, "must contain exactly one or zero element. Found '2' elements."},
	{"state without type", `sequence_batching { state { input_name: "SI" output_name: "SO" dims: 1 } }`, "state 'SI' of model 'm' must specify 'data_type'"},
	{"state without name", `sequence_batching { state { input_name: "SI" data_type: TYPE_INT32 dims: 1 } }`, "must have an input_name and an output_name"},
	{"states twice", `sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 } state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 1 } }`, "Detected duplicate 'input_name' in the state configuration: 'SI.'"},
	{"slots", `sequence_batching { direct { minimum_slot_utilization: 2 } }`, "must be in range (0.0, 1.0] for m"},
	{"batch input", `batch_input { }`, "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m"},
	{"batch input source", io + `batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "z" }`, "unknown source input name 'z' for m"},
	{"batch input datatype", io + `batch_input { target_name: "n" data_type: TYPE_INT64 source_input: "x" }`, "batch input data type must be TYPE_INT32 or TYPE_FP32 for m"},
	{"batch output", io + `batch_output { target_name: "z" source_input: "x" }`, "unknown target output name 'z' for m"},
	{"batch output twice", io + `batch_output { target_name: "y" target_name: "y" source_input: "x" }`, "target output name 'y' can only be specified once for m"},
	{"batch output dims", `input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true } output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
		batch_output { target_name: "y" source_input: "x" }`, "output 'y' takes its variable dimension 1 from source input 'x', which has 1 dimensions for m"},
	{"good ragged", `input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true } output { name: "y" data_type: TYPE_FP32 dims: [-1, 2] }
		batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "x" } batch_output { target_name: "y" source_input: "x" }`, ""},
	{"warm-up size", io + `model_warmup { name: "w" batch_size: 2 }`, "failed to run warmup sample 'w': batch size 2 for 'm', max allowed is 0"},
	{"warm-up file", io + `model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "../x" } } }`,
		"warm-up file \"../x\" of input 'x' in model 'm' is outside model directory"},
	{"metrics", `model_metrics { metric_control { } }`, "metric control must specify 'metric_identifier'"},
	{"warmup", io + `model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 input_data_file: "../a" } } }`, `warm-up file "../a" of input 'x'`},
}

func TestValidate(t *testing.T) {
	for _, row := range validations {
		t.Run(row.name, func(t *testing.T) {
			text := row.config
			if !strings.Contains(text, "backend:") {
				text += "\nbackend: \"onnxruntime\""
			}
			cfg, src, err := Parse("c", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			opts := Options{Known: known(t), Folder: "m", Source: src, Backends: map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime"}}}
			if _, err = Complete(cfg, nil, opts); err == nil {
				err = Validate(cfg, opts)
			}
			switch {
			case row.want == "" && err != nil:
				t.Fatalf("got %v, want no error", err)
			case row.want == "":
			case err == nil || !strings.Contains(err.Error(), row.want):
				t.Fatalf("got %v, want %s", err, row.want)
			case infer.CodeOf(err) != infer.InvalidArg:
				t.Fatalf("code %v", infer.CodeOf(err))
			}
		})
	}
}

func TestValidateBackend(t *testing.T) {
	for config, want := range map[string]string{
		`platform: "zz_zz"`:                  "unexpected platform type 'zz_zz' for m",
		`platform: "onnxruntime"`:            `did you mean "onnxruntime_onnx"?`,
		`backend: "onnx_runtime"`:            `unable to find backend library for backend 'onnx_runtime', try specifying runtime on the model configuration. (no worker has backend 'onnx_runtime' of model 'm'; there are: identity, onnxruntime; did you mean "onnxruntime"?)`,
		`backend: "identity"`:                "backend 'identity' of model 'm' can't be used: no reason",
		`platform: "ensemble"`:               "ensemble scheduling must be set for ensemble m whose platform is ensemble",
		`ensemble_scheduling { }`:            "must specify 'step' for ensemble 'm'",
		`default_model_filename: "net.onnx"`: "must specify 'platform' or 'backend' for 'm'",
	} {
		cfg, src, err := Parse("c", []byte(config))
		if err != nil {
			t.Fatal(err)
		}
		opts := Options{Known: known(t), Folder: "m", Source: src, Backends: map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime"}, "identity": {Name: "identity", Unavailable: "no reason"}}}
		if _, err := Complete(cfg, nil, opts); err != nil {
			t.Fatal(err)
		}
		if err := Validate(cfg, opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", config, err, want)
		}
	}
}

// A backend that comes from the platform is told of where the platform stands.
func TestValidateBackendOfPlatform(t *testing.T) {
	cfg, src, err := Parse("c", []byte("max_batch_size: 1\n platform: \"tensorflow_graphdef\""))
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Known: known(t), Folder: "m", Source: src, Backends: map[string]*worker.Backend{"onnxruntime": {Name: "onnxruntime"}}}
	if _, err := Complete(cfg, nil, opts); err != nil {
		t.Fatal(err)
	}
	if err := Validate(cfg, opts); err == nil || !strings.Contains(err.Error(), "c:2:2: unable to find backend library for backend 'tensorflow', try specifying runtime on the model configuration. (no worker has backend 'tensorflow'") {
		t.Errorf("got %v", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"max_batch_size", "input", "output", "instance_group", "gpus"}
	for name, want := range map[string]string{"maxBatchSize": "max_batch_size", "max_batch_sise": "max_batch_size", "inputs": "input",
		"instance_gruop": "instance_group", "gpu": "gpus", "frobnicate": "", "": ""} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
