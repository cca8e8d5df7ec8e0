//go:build cgo

package tritonhost

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

func open(t *testing.T, options map[string]string) backend.Backend {
	t.Helper()
	b, err := New(built.library)(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// config is a model whose one input, of any length, is its output.
func config(mode string, batch int32) *modelconfig.ModelConfig {
	return &modelconfig.ModelConfig{Name: mode, Backend: "probe", MaxBatchSize: batch,
		Input:                  []*modelconfig.ModelInput{{Name: "IN", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{-1}}},
		Output:                 []*modelconfig.ModelOutput{{Name: "OUT", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{-1}}},
		Parameters:             map[string]*modelconfig.ModelParameter{"mode": {StringValue: mode}},
		ModelTransactionPolicy: &modelconfig.ModelTransactionPolicy{Decoupled: strings.Contains(mode, "stream")}}
}

func specOf(t *testing.T, c *modelconfig.ModelConfig) backend.Spec {
	t.Helper()
	return backend.Spec{Name: c.GetName(), Version: 1, ModelDir: filepath.Join(t.TempDir(), c.GetName()), Config: c,
		BackendFile: library()}
}

func tensor(name string, shape []int64, values ...int32) infer.Tensor {
	t := infer.Tensor{Name: name, Datatype: infer.Int32, Shape: shape}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(v))
	}
	return t
}

func TestSuite(t *testing.T) {
	batched, plain := []int64{1, 3}, []int64{3}
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		return backendtest.Subject{Backend: open(t, nil), Models: []backendtest.Model{
			{Spec: specOf(t, config("batched", 8)), Rows: 1, Inputs: []infer.Tensor{tensor("IN", batched, 1, 2, 3)},
				Want: []infer.Tensor{tensor("OUT", batched, 1, 2, 3)}, Bad: [][]infer.Tensor{{tensor("IN", batched, -7, 0, 0)}}},
			{Spec: specOf(t, config("plain", 0)), Inputs: []infer.Tensor{tensor("IN", plain, 1, 2, 3)},
				Want: []infer.Tensor{tensor("OUT", plain, 1, 2, 3)}},
			{Spec: specOf(t, config("later", 8)), Rows: 1, Keeps: true, Inputs: []infer.Tensor{tensor("IN", batched, 1, 2, 3)},
				Want: []infer.Tensor{tensor("OUT", batched, 1, 2, 3)}},
			{Spec: specOf(t, config("slow-stream", 0)), Keeps: true, Answers: 1, Inputs: []infer.Tensor{tensor("IN", []int64{1}, 1)},
				Want: []infer.Tensor{tensor("OUT", []int64{1}, 0)}},
		}, Refused: []backend.Spec{specOf(t, config("refuse", 0)), specOf(t, config("refuse-instance", 0)), noLibrary(t)}}
	})
}

// noLibrary is a model whose backend is no library.
func noLibrary(t *testing.T) backend.Spec {
	t.Helper()
	spec := specOf(t, config("plain", 0))
	spec.BackendFile = filepath.Join(spec.ModelDir, "libtriton_text.so")
	if err := os.MkdirAll(spec.ModelDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spec.BackendFile, []byte("no library"), 0o755); err != nil {
		t.Fatal(err)
	}
	return spec
}

// instanceOf loads a model with one instance.
func instanceOf(t *testing.T, b backend.Backend, c *modelconfig.ModelConfig) backend.Instance {
	t.Helper()
	m, err := b.Load(t.Context(), specOf(t, c))
	if err != nil {
		t.Fatal(err)
	}
	in, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: c.GetName() + "_0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// run executes one request, and wants no rule of batches broken.
func run(t *testing.T, in backend.Instance, r backendtest.Request) backendtest.Answer {
	t.Helper()
	b := backendtest.NewBatch(r)
	b.Run(in)
	for _, f := range b.Faults() {
		t.Error(f)
	}
	return b.Answers()[0]
}

func TestStream(t *testing.T) {
	in := instanceOf(t, open(t, nil), config("stream", 0))
	for _, n := range []int32{0, 1, 10_000} {
		a := run(t, in, backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, n)}})
		if a.Err != nil || len(a.Responses) != int(n)+1 {
			t.Fatalf("%d answers, error %v, want %d and the end", len(a.Responses), a.Err, n)
		}
		for i, r := range a.Responses[:n] {
			if got := binary.LittleEndian.Uint32(r.Outputs[0].Data); got != uint32(i) || r.Final {
				t.Fatalf("answer %d is %d, final %v", i, got, r.Final)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	b := open(t, nil)
	for mode, want := range map[string]struct {
		code infer.Code
		text string
	}{
		"fail":   {infer.Unavailable, "not now"},
		"silent": {infer.Internal, "backend 'probe' released a request of model 'silent' without an answer"},
	} {
		in := instanceOf(t, b, config(mode, 0))
		a := run(t, in, backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, 1)}})
		if a.Err == nil || infer.CodeOf(a.Err) != want.code || !strings.Contains(a.Err.Error(), want.text) {
			t.Errorf("%s: %v, want %v with %q", mode, a.Err, want.code, want.text)
		}
	}
}

// A backend that answers twice, and releases twice, gets errors; the request has its first answer.
func TestTwice(t *testing.T) {
	in := instanceOf(t, open(t, nil), config("twice", 0))
	for range 100 {
		a := run(t, in, backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, 5)}})
		if a.Err != nil || len(a.Responses) != 1 {
			t.Fatalf("%d answers, error %v, want one", len(a.Responses), a.Err)
		}
	}
}

func TestParameters(t *testing.T) {
	in := instanceOf(t, open(t, nil), config("parameters", 0))
	params := infer.Params{{Name: "s", Value: infer.Value{Kind: infer.KindString, Str: "text"}},
		{Name: "i", Value: infer.Value{Kind: infer.KindInt64, Int: -5}}, {Name: "b", Value: infer.Value{Kind: infer.KindBool, Bool: true}},
		{Name: "d", Value: infer.Value{Kind: infer.KindDouble, Double: 0.5}}}
	a := run(t, in, backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, 5)}, Params: params})
	if a.Err != nil || len(a.Responses) != 1 || !slices.Equal(a.Responses[0].Params, params) {
		t.Errorf("got %+v, %v, want the request's parameters", a.Responses, a.Err)
	}
}

// States that the backend updates are the new ones, and others stay.
func TestStates(t *testing.T) {
	c := config("count", 0)
	c.SchedulingChoice = &modelconfig.ModelConfig_SequenceBatching{SequenceBatching: &modelconfig.ModelSequenceBatching{
		State: []*modelconfig.ModelSequenceBatching_State{{InputName: "SUM_IN", OutputName: "SUM_OUT",
			DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}}}}}
	in := instanceOf(t, open(t, nil), c)
	for had, want := range map[int32][2]int32{0: {1, 1}, 1: {2, 2}, 2: {3, 2}, 9: {10, 9}} {
		a := run(t, in, backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, 5), tensor("SUM_IN", []int64{1}, had)}})
		if a.Err != nil || len(a.Responses) != 1 || len(a.Responses[0].Outputs) != 2 {
			t.Fatalf("got %+v, %v, want an output and a state", a.Responses, a.Err)
		}
		out, state := a.Responses[0].Outputs[0], a.Responses[0].Outputs[1]
		if out.Name != "OUT" || state.Name != "SUM_OUT" || binary.LittleEndian.Uint32(out.Data) != uint32(want[0]) ||
			binary.LittleEndian.Uint32(state.Data) != uint32(want[1]) {
			t.Errorf("after %d: %v %v, want %v", had, out, state, want)
		}
	}
}

func TestComplete(t *testing.T) {
	c := config("complete", 0)
	c.Input, c.Output = nil, nil
	d, err := open(t, nil).Describe(t.Context(), specOf(t, c))
	if err != nil {
		t.Fatal(err)
	}
	if p := d.Patch; p.GetMaxBatchSize() != 4 || len(p.GetInput()) != 1 || p.GetOutput()[0].GetName() != "OUT" || p.GetDynamicBatching() == nil {
		t.Errorf("the patch is %v", d.Patch)
	}
	if _, err := open(t, nil).Describe(t.Context(), specOf(t, config("plain", 0))); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("a backend that says nothing: %v, want Unsupported", err)
	}
}

// A backend is told its options in Triton's order.
func TestBackendConfig(t *testing.T) {
	got := string(backendConfig(map[string]string{"zeta": "1", "alpha": "x", "auto-complete-config": "true", "backend-directory": "/b",
		"glob": "7", "min-compute-capability": "6.000000", "stall-seconds": "5"}))
	want := `{"cmdline":{"alpha":"x","auto-complete-config":"true","backend-directory":"/b","glob":"7",` +
		`"min-compute-capability":"6.000000","zeta":"1","default-max-batch-size":"4"}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
