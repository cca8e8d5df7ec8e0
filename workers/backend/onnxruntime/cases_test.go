//go:build onnxruntime && cgo

package onnxruntime

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// started is a model with one instance, closed with the test.
func started(t testing.TB, b backend.Backend, s backend.Spec) backend.Instance {
	t.Helper()
	m, err := b.Load(t.Context(), s)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: s.Name + "_0_0"})
	if err != nil {
		t.Fatalf("NewInstance: %v", err)
	}
	t.Cleanup(func() {
		if err := inst.Close(); err != nil {
			t.Errorf("Instance.Close: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Errorf("Model.Close: %v", err)
		}
	})
	return inst
}

func opened(t testing.TB, options map[string]string) backend.Backend {
	b := open(t, options)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Backend.Close: %v", err)
		}
	})
	return b
}

// answer runs one request and wants it answered with one output.
func answer(t *testing.T, inst backend.Instance, rows int, inputs ...infer.Tensor) infer.Tensor {
	t.Helper()
	b := backendtest.NewBatch(backendtest.Request{Rows: rows, Inputs: inputs})
	b.Run(inst)
	for _, f := range b.Faults() {
		t.Error(f)
	}
	a := b.Answers()[0]
	if a.Err != nil || len(a.Responses) != 1 || len(a.Responses[0].Outputs) != 1 {
		t.Fatalf("answer %+v, want one output", a)
	}
	return a.Responses[0].Outputs[0]
}

func same(t *testing.T, got, want infer.Tensor) {
	t.Helper()
	if got.Name != want.Name || got.Datatype != want.Datatype || !slices.Equal(got.Shape, want.Shape) || string(got.Data) != string(want.Data) {
		t.Errorf("got %s %s %v %x, want %s %s %v %x", got.Name, got.Datatype, got.Shape, got.Data,
			want.Name, want.Datatype, want.Shape, want.Data)
	}
}

const liesConfig = `name: "lies"
input { name: "X" data_type: TYPE_FP32 dims: [-1, -1] }
input { name: "S" data_type: TYPE_INT64 dims: 2 }
output { name: "Y" data_type: TYPE_FP32 dims: [-1, -1] }`

func TestOutputsOtherThanDeclared(t *testing.T) {
	inst := started(t, opened(t, nil), spec(t, "lies", liesConfig))
	x := floats("X", []int64{1, 6}, 1, 2, 3, 4, 5, 6)
	same(t, answer(t, inst, 0, x, ints("S", []int64{2}, 1, 6)), floats("Y", []int64{1, 6}, 1, 2, 3, 4, 5, 6))
	same(t, answer(t, inst, 0, x, ints("S", []int64{2}, 2, 3)), floats("Y", []int64{2, 3}, 1, 2, 3, 4, 5, 6))
	same(t, answer(t, inst, 0, x, ints("S", []int64{2}, 3, 2)), floats("Y", []int64{3, 2}, 1, 2, 3, 4, 5, 6))
}

func TestInputWithInitializer(t *testing.T) {
	const config = `name: "optional"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
input { name: "B" data_type: TYPE_FP32 dims: 1 optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }`
	inst := started(t, opened(t, nil), spec(t, "optional", config))
	x := floats("X", []int64{2}, 1, 2)
	same(t, answer(t, inst, 0, x), floats("Y", []int64{2}, 11, 12))
	same(t, answer(t, inst, 0, x, floats("B", []int64{1}, 100)), floats("Y", []int64{2}, 101, 102))
	same(t, answer(t, inst, 0, floats("B", []int64{1}, 0), x), floats("Y", []int64{2}, 1, 2))
}

func TestScalarInTheConfiguredShape(t *testing.T) {
	const config = `name: "scalar"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: [1, 1] }`
	inst := started(t, opened(t, nil), spec(t, "scalar", config))
	same(t, answer(t, inst, 0, floats("X", []int64{1}, 3)), floats("Y", []int64{1, 1}, -3))
}

func TestUnrankedOutput(t *testing.T) {
	const config = `name: "unranked"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
input { name: "S" data_type: TYPE_INT64 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: [-1, -1] }`
	inst := started(t, opened(t, nil), spec(t, "unranked", config))
	same(t, answer(t, inst, 0, floats("X", []int64{2}, 1, 2), ints("S", []int64{3}, 1, 2, 1)), floats("Y", []int64{1, 2, 1}, 1, 2))
}

func TestMisalignedInput(t *testing.T) {
	inst := started(t, opened(t, nil), spec(t, "addsub", addsubConfig))
	b := backendtest.NewBatch(backendtest.Request{Rows: 1, Inputs: []infer.Tensor{ramp("INPUT0", 1, 0, 1), ramp("INPUT1", 1, 1, 0)}})
	in := b.Inputs()
	for i := range in {
		moved := append(make([]byte, 1, 1+len(in[i].Data)), in[i].Data...)
		in[i].Data = moved[1:]
	}
	b.Run(inst)
	if a := b.Answers()[0]; a.Err != nil {
		t.Fatal(a.Err)
	} else {
		same(t, a.Responses[0].Outputs[0], ramp("OUTPUT0", 1, 1, 1))
	}
}

func TestDescribe(t *testing.T) {
	tests := []struct {
		model string
		want  backend.Description
	}{
		{"addsub", backend.Description{
			Inputs: []backend.TensorInfo{{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{-1, 16}},
				{Name: "INPUT1", Datatype: infer.FP32, Shape: []int64{-1, 16}}},
			Outputs: []backend.TensorInfo{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{-1, 16}},
				{Name: "OUTPUT1", Datatype: infer.FP32, Shape: []int64{-1, 16}}}}},
		{"optional", backend.Description{
			Inputs: []backend.TensorInfo{{Name: "X", Datatype: infer.FP32, Shape: []int64{-1}},
				{Name: "B", Datatype: infer.FP32, Shape: []int64{1}, Optional: true}},
			Outputs: []backend.TensorInfo{{Name: "Y", Datatype: infer.FP32, Shape: []int64{-1}}}}},
		{"scalar", backend.Description{
			Inputs:  []backend.TensorInfo{{Name: "X", Datatype: infer.FP32, Shape: []int64{}}},
			Outputs: []backend.TensorInfo{{Name: "Y", Datatype: infer.FP32, Shape: []int64{}}}}},
		{"unranked", backend.Description{
			Inputs: []backend.TensorInfo{{Name: "X", Datatype: infer.FP32, Shape: []int64{-1}},
				{Name: "S", Datatype: infer.Int64, Shape: []int64{-1}}},
			Outputs: []backend.TensorInfo{{Name: "Y", Datatype: infer.FP32}}}},
	}
	b := opened(t, nil)
	for _, tc := range tests {
		got, err := b.Describe(t.Context(), spec(t, tc.model, ""))
		if err != nil {
			t.Errorf("%s: %v", tc.model, err)
			continue
		}
		compareInfos(t, tc.model+" inputs", got.Inputs, tc.want.Inputs)
		compareInfos(t, tc.model+" outputs", got.Outputs, tc.want.Outputs)
	}
}

func compareInfos(t *testing.T, what string, got, want []backend.TensorInfo) {
	t.Helper()
	equal := slices.EqualFunc(got, want, func(a, b backend.TensorInfo) bool {
		return a.Name == b.Name && a.Datatype == b.Datatype && a.Optional == b.Optional && slices.Equal(a.Shape, b.Shape) &&
			(a.Shape == nil) == (b.Shape == nil)
	})
	if !equal {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func TestLoadErrors(t *testing.T) {
	edit := func(old, new string) string { return strings.Replace(addsubConfig, old, new, 1) }
	tests := []struct {
		name, model, config string
		code                infer.Code
		want                string // the whole text, or with … at its end its beginning
	}{
		{"too many inputs", "addsub", addsubConfig + ` input { name: "X" data_type: TYPE_FP32 dims: 1 }`, infer.InvalidArg,
			"unable to load model 'addsub', configuration expects 3 inputs, model provides 2"},
		{"unknown input", "addsub", edit(`"INPUT1"`, `"INPUT2"`), infer.InvalidArg,
			"unexpected inference input 'INPUT2', allowed inputs are: INPUT0, INPUT1"},
		{"no such control", "addsub", addsubConfig + ` sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } }`,
			infer.Internal, "configuration specified sequence control 'S', but model does not provide that input"},
		{"dims of a control", "addsub", addsubConfig + ` sequence_batching { control_input { name: "INPUT1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } } }`,
			infer.InvalidArg, "unable to load model 'addsub', sequence control 'INPUT1' in model has dims [16] but dims [1] is expected"},
		{"no such state", "addsub", addsubConfig + ` sequence_batching { state { input_name: "S" output_name: "OUTPUT1" data_type: TYPE_FP32 dims: 16 } }`,
			infer.InvalidArg, "unable to load model 'addsub', state input 'S' is not in the model, which has: INPUT0, INPUT1"},
		{"datatype of a state", "addsub", addsubConfig + ` sequence_batching { state { input_name: "INPUT1" output_name: "OUTPUT1" data_type: TYPE_INT32 dims: 16 } }`,
			infer.InvalidArg, "unable to load model 'addsub', configuration expects datatype TYPE_INT32 for state input 'INPUT1', model provides TYPE_FP32"},
		{"unknown output", "addsub", edit(`"OUTPUT1"`, `"OUTPUT2"`), infer.InvalidArg,
			"unexpected inference output 'OUTPUT2', allowed outputs are: OUTPUT0, OUTPUT1"},
		{"datatype", "addsub", edit("TYPE_FP32", "TYPE_INT32"), infer.InvalidArg,
			"unable to load model 'addsub', configuration expects datatype TYPE_INT32 for input 'INPUT0', model provides TYPE_FP32"},
		{"dims", "addsub", edit("dims: 16", "dims: [16, 2]"), infer.InvalidArg,
			"model 'addsub', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies" +
				" 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape," +
				" making complete shape [-1,16,2])"},
		{"no batch dimension", "fixed", fixedConfig + " max_batch_size: 4", infer.InvalidArg,
			"model 'fixed', tensor 'A': for the model to support batching the shape should have at least 1 dimension and the" +
				" first dimension must be -1; but shape expected by the model is [4]"},
		{"dims without batch", "fixed", strings.Replace(fixedConfig, "dims: 4", "dims: [4, 1]", 1), infer.InvalidArg,
			"model 'fixed', tensor 'A': the model expects 1 dimensions (shape [4]) but the model configuration specifies" +
				" 2 dimensions (shape [4,1])"},
		{"sequence output", "sequence", "", infer.Unsupported,
			"Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'Y', expected 'ONNX_TYPE_TENSOR'."},
		{"no model", "broken", fixedConfig, infer.InvalidArg,
			"unable to load model 'broken': onnx runtime error 7: Load model from 1/model.onnx failed:…"},
		{"execution mode", "addsub", addsubConfig + ` parameters { key: "execution_mode" value { string_value: "2" } }`, infer.InvalidArg,
			"unable to load model 'addsub': Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got 2 ."},
		{"thread count", "addsub", addsubConfig + ` parameters { key: "intra_op_thread_count" value { string_value: "two" } }`, infer.InvalidArg,
			"unable to load model 'addsub': parameter 'intra_op_thread_count': 'two' is no thread count (0 to 1024)"},
		{"accelerator", "addsub", addsubConfig + ` optimization { execution_accelerators { gpu_execution_accelerator { name: "x" } } }`,
			infer.InvalidArg, "unable to load model 'addsub': unknown Execution Accelerator 'x' is requested"},
		{"openvino", "addsub", addsubConfig + ` optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }`,
			infer.Unsupported, "unable to load model 'addsub': Execution Accelerator 'openvino' is not supported…"},
		{"tensorrt key", "addsub", addsubConfig + ` optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" parameters { key: "x" value: "1" } } } }`,
			infer.InvalidArg, "unable to load model 'addsub': unknown parameter 'x' is provided for TensorRT Execution Accelerator"},
		{"precision", "addsub", addsubConfig + ` optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP4" } } } }`,
			infer.InvalidArg, "unable to load model 'addsub': unsupported precision mode 'FP4' is requested"},
	}
	b := opened(t, nil)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			m, err := b.Load(t.Context(), spec(t, tc.model, tc.config))
			if err == nil {
				_ = m.Close()
				t.Fatal("loaded, want an error")
			}
			begin, open := strings.CutSuffix(tc.want, "…")
			if got := err.Error(); got != tc.want && !(open && strings.HasPrefix(got, begin)) {
				t.Errorf("error %q\nwant  %q", got, tc.want)
			}
			if got := infer.CodeOf(err); got != tc.code {
				t.Errorf("code %v, want %v", got, tc.code)
			}
		})
	}
}

func TestGPUInstanceWithoutProvider(t *testing.T) {
	b := opened(t, nil)
	if b.Info().GPU {
		t.Skip("the library in use has the CUDA provider beside it")
	}
	m, err := b.Load(t.Context(), spec(t, "addsub", addsubConfig+" instance_group { kind: KIND_GPU }"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	_, err = m.NewInstance(t.Context(), backend.InstanceSpec{GPU: true})
	if err == nil || !strings.Contains(err.Error(), "'libonnxruntime_providers_cuda.so'") || infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("NewInstance: %v, want an Unavailable that names the missing library", err)
	}
}

func TestNoLibrary(t *testing.T) {
	for _, path := range []string{"", "/nonexistent/folder/libonnxruntime.so", "testdata/broken.onnx"} {
		b, err := New(path)(nil)
		if err != nil {
			t.Fatalf("New(%q): %v", path, err)
		}
		why := b.Info().Unavailable
		if why == "" || strings.Contains(why, "/nonexistent") {
			t.Errorf("New(%q): Unavailable = %q, want a reason without the path", path, why)
		}
		if _, err := b.Load(t.Context(), backend.Spec{Name: "m"}); infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("New(%q): Load: %v, want Unavailable", path, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLoadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, err := opened(t, nil).Load(ctx, spec(t, "mlp", mlpConfig))
	if err == nil { // it was quicker
		_ = m.Close()
	} else if infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("Load: %v, want Cancelled", err)
	}
}
