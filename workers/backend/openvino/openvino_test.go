//go:build cgo

package openvino

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

func engines(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SLUICE_ENGINES")
	if dir == "" {
		t.Skip("SLUICE_ENGINES is not set: no OpenVINO to test with (make test installs it)")
	}
	return dir
}

func open(t testing.TB, factory func(string) backend.Factory) backend.Backend {
	t.Helper()
	b, err := factory(engines(t))(nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := b.Info().Unavailable; text != "" {
		t.Fatal(text)
	}
	return b
}

func closed(t testing.TB, b interface{ Close() error }) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func spec(t testing.TB, file, config string) backend.Spec {
	t.Helper()
	cfg := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatalf("%v in %s", err, config)
	}
	cfg.Name = "m"
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return backend.Spec{Name: "m", Version: 1, ModelDir: dir, ModelFile: filepath.Join(dir, file), Config: cfg, Instances: 2}
}

const (
	addsub = `max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 } input { name: "B" data_type: TYPE_FP32 dims: 4 }
output { name: "SUM" data_type: TYPE_FP32 dims: 4 } output { name: "DIFF" data_type: TYPE_FP32 dims: 4 } `
	nonzero = `input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "INDEX" data_type: TYPE_INT64 dims: [1, -1] } `
)

func ints(kind string) string { return strings.ReplaceAll(addsub, "TYPE_FP32", kind) }

func twice(kind string) string {
	return `max_batch_size: 64 input { name: "X" data_type: ` + kind + ` dims: -1 } output { name: "Y" data_type: ` + kind + ` dims: -1 } `
}

func parameter(key, value string) string {
	return `parameters { key: "` + key + `" value { string_value: "` + value + `" } } `
}

func floats(name string, shape []int64, values ...float32) infer.Tensor {
	t := infer.Tensor{Name: name, Datatype: infer.FP32, Shape: shape}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return t
}

func longs(name string, shape []int64, values ...int64) infer.Tensor {
	t := infer.Tensor{Name: name, Datatype: infer.Int64, Shape: shape}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(v))
	}
	return t
}

func TestSuite(t *testing.T) {
	shape := []int64{1, 4}
	a, b := floats("A", shape, 1, 2, 3, 4), floats("B", shape, 10, 20, 30, 40)
	sums := []infer.Tensor{floats("SUM", shape, 11, 22, 33, 44), floats("DIFF", shape, -9, -18, -27, -36)}
	broken := spec(t, "addsub.xml", addsub)
	broken.ModelFile = filepath.Join(t.TempDir(), "model.xml")
	text, err := os.ReadFile(filepath.Join("testdata", "addsub.xml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken.ModelFile, text[:900], 0o600); err != nil {
		t.Fatal(err)
	}
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		return backendtest.Subject{Backend: open(t, New), Models: []backendtest.Model{
			{Spec: spec(t, "addsub.xml", addsub), Rows: 1, Inputs: []infer.Tensor{a, b}, Want: sums,
				Bad: [][]infer.Tensor{{a}, {a, floats("C", shape, 1, 2, 3, 4)}, {a, floats("B", []int64{1, 3}, 1, 2, 3)}}},
			{Spec: spec(t, "fixed.xml", ints("TYPE_INT64")), Rows: 1, Inputs: []infer.Tensor{longs("A", shape, 1, 2, 3, 4), longs("B", shape, 5, 6, 7, 8)},
				Want: []infer.Tensor{longs("SUM", shape, 6, 8, 10, 12), longs("DIFF", shape, -4, -4, -4, -4)}},
			{Spec: spec(t, "nonzero.xml", nonzero), Inputs: []infer.Tensor{floats("X", []int64{5}, 0, 1, 0, 0, 2)},
				Want: []infer.Tensor{longs("INDEX", []int64{1, 2}, 1, 4)}},
			{Spec: spec(t, "twice_u8.xml", twice("TYPE_UINT8")), Rows: 2, Inputs: []infer.Tensor{{Name: "X", Datatype: infer.Uint8, Shape: []int64{2, 1}, Data: []byte{3, 4}}},
				Want: []infer.Tensor{{Name: "Y", Datatype: infer.Uint8, Shape: []int64{2, 2}, Data: []byte{3, 3, 4, 4}}}},
		}, Refused: []backend.Spec{broken, spec(t, "nowhere.xml", addsub), spec(t, "addsub.xml", strings.Replace(addsub, "dims: 4", "dims: 5", 1))}}
	})
}

// Each is refused by what is wrong with it.
func TestRefused(t *testing.T) {
	b := open(t, New)
	defer closed(t, b)
	for want, c := range map[string][2]string{
		"stateful.xml: it keeps state from one inference to the next":                       {"stateful.xml", addsub},
		"nowhere.xml: it is not there":                                                      {"nowhere.xml", addsub},
		"testdata":                                                                          {"../testdata", addsub},
		"configuration expects 1 inputs, model provides 2":                                  {"addsub.xml", `output { name: "SUM" data_type: TYPE_FP32 dims: 4 } input { name: "A" data_type: TYPE_FP32 dims: 4 }`},
		"unexpected inference input 'Z', allowed inputs are: A, B":                          {"addsub.xml", strings.Replace(addsub, `"A"`, `"Z"`, 1)},
		"unexpected inference output 'Z', allowed outputs are: DIFF, SUM":                   {"addsub.xml", strings.Replace(addsub, `"SUM"`, `"Z"`, 1)},
		"configuration expects datatype TYPE_INT64 for input 'A', model provides TYPE_FP32": {"addsub.xml", ints("TYPE_INT64")},
		"model 'm', tensor 'A': the model expects 2 dimensions (shape [1..8,4]) but the model configuration specifies 2 dimensions":                  {"addsub.xml", strings.ReplaceAll(addsub, "dims: 4", "dims: 5")},
		"(shape [1..8,4]) but the model configuration specifies 3 dimensions (an initial batch dimension":                                            {"addsub.xml", strings.ReplaceAll(addsub, "dims: 4", "dims: [4, 1]")},
		"parameter 'TARGET_DEVICE' is 'GPU': models are computed on the CPU here":                                                                    {"addsub.xml", addsub + parameter("TARGET_DEVICE", "GPU")},
		"parameter 'CPU_EXTENSION_PATH' is not supported":                                                                                            {"addsub.xml", addsub + parameter("CPU_EXTENSION_PATH", "/x.so")},
		"parameter 'NUM_STREAMS': 'many' is neither AUTO, NUMA nor a number":                                                                         {"addsub.xml", addsub + parameter("NUM_STREAMS", "many")},
		"parameter 'INFERENCE_NUM_THREADS': '0' is no number of threads":                                                                             {"addsub.xml", addsub + parameter("INFERENCE_NUM_THREADS", "0")},
		"parameter 'PERFORMANCE_HINT' is 'FAST', and not LATENCY":                                                                                    {"addsub.xml", addsub + parameter("PERFORMANCE_HINT", "FAST")},
		"parameter 'RESHAPE_IO_LAYERS' is 'maybe', and neither YES nor NO":                                                                           {"addsub.xml", addsub + parameter("RESHAPE_IO_LAYERS", "maybe")},
		"tensor 'X': the model expects 2 dimensions (shape [1..64,1..8]) but the model configuration specifies 2 dimensions (an initial batch dimen": {"twice_u8.xml", strings.Replace(twice("TYPE_UINT8"), "dims: -1", "dims: 9", 1)},
	} {
		_, err := b.Load(t.Context(), spec(t, c[0], c[1]))
		if err == nil || !strings.Contains(err.Error(), want) && want != "testdata" || strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("Load: %v\nwant %q in it", err, want)
		}
	}
}

// made is an instance of a loaded model.
func made(t *testing.T, b backend.Backend, sp backend.Spec) backend.Instance {
	t.Helper()
	m, err := b.Load(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, m) })
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, inst) })
	return inst
}

func run(t *testing.T, inst backend.Instance, requests ...backendtest.Request) []backendtest.Answer {
	t.Helper()
	batch := backendtest.NewBatch(requests...)
	batch.Run(inst)
	for _, f := range batch.Faults() {
		t.Error(f)
	}
	return batch.Answers()
}

func outputs(t *testing.T, a backendtest.Answer) map[string]infer.Tensor {
	t.Helper()
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	all := map[string]infer.Tensor{}
	for _, o := range a.Responses[0].Outputs {
		all[o.Name] = o
	}
	return all
}

// Types, ranges of dimensions, and parameters that do something or nothing.
func TestTypes(t *testing.T) {
	b := open(t, New)
	t.Cleanup(func() { closed(t, b) })
	for _, c := range []struct {
		file, kind string
		datatype   infer.Datatype
		data       []byte // of one element
		more       string
	}{
		{"f64", "TYPE_FP64", infer.FP64, binary.LittleEndian.AppendUint64(nil, math.Float64bits(1.5)), parameter("PERFORMANCE_HINT", "LATENCY")},
		{"f16", "TYPE_FP16", infer.FP16, []byte{0, 0x3c}, parameter("INFERENCE_NUM_THREADS", "2") + parameter("NUM_STREAMS", "1")},
		{"u8", "TYPE_UINT8", infer.Uint8, []byte{200}, parameter("ENABLE_BATCH_PADDING", "YES") + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "NO")},
		{"bool", "TYPE_BOOL", infer.Bool, []byte{1}, parameter("COMPILATION_NUM_THREADS", "1")},
		{"i32", "TYPE_INT32", infer.Int32, []byte{1, 2, 3, 4}, parameter("HINT_BF16", "NO") + parameter("NUM_STREAMS", "AUTO")},
	} {
		t.Run(c.file, func(t *testing.T) {
			inst := made(t, b, spec(t, "twice_"+c.file+".xml", twice(c.kind)+c.more))
			for _, columns := range []int64{1, 8, 3} {
				one := slices.Repeat(c.data, int(columns))
				in := infer.Tensor{Name: "X", Datatype: c.datatype, Shape: []int64{1, columns}, Data: one}
				for _, a := range run(t, inst, backendtest.Request{Rows: 1, Inputs: []infer.Tensor{in}}, backendtest.Request{Rows: 1, Inputs: []infer.Tensor{in}}) {
					if got := outputs(t, a)["Y"]; !slices.Equal(got.Data, slices.Repeat(one, 2)) || !slices.Equal(got.Shape, []int64{1, 2 * columns}) {
						t.Errorf("%d columns: %+v", columns, got)
					}
				}
			}
			in := infer.Tensor{Name: "X", Datatype: c.datatype, Shape: []int64{1, 9}, Data: slices.Repeat(c.data, 9)}
			if a := run(t, inst, backendtest.Request{Rows: 1, Inputs: []infer.Tensor{in}}); a[0].Err == nil || !strings.HasPrefix(a[0].Err.Error(), "OpenVINO execute failure: ") {
				t.Errorf("9 columns of at most 8: %v", a[0].Err)
			}
		})
	}
}

// An output that nobody wants is written nowhere that matters, and one that is wanted again is there.
func TestWanted(t *testing.T) {
	b := open(t, New)
	t.Cleanup(func() { closed(t, b) })
	inst := made(t, b, spec(t, "addsub.xml", addsub))
	shape := []int64{2, 4}
	in := []infer.Tensor{floats("A", shape, 1, 2, 3, 4, 5, 6, 7, 8), floats("B", shape, 1, 1, 1, 1, 1, 1, 1, 1)}
	before := outputs(t, run(t, inst, backendtest.Request{Rows: 2, Inputs: in})[0])
	kept := slices.Clone(before["DIFF"].Data)
	for _, want := range [][]string{{"SUM"}, {"DIFF"}, nil} {
		got := outputs(t, run(t, inst, backendtest.Request{Rows: 2, Inputs: in, Outputs: want})[0])
		if n := len(want); n > 0 && len(got) != n {
			t.Errorf("%v: %v", want, got)
		}
		if sum, ok := got["SUM"]; ok && !slices.Equal(sum.Data, floats("", nil, 2, 3, 4, 5, 6, 7, 8, 9).Data) {
			t.Errorf("%v: %v", want, sum)
		}
	}
	if !slices.Equal(kept, before["DIFF"].Data) {
		t.Error("memory of a batch that has ended was written")
	}
}

// begun is a batch that tells when its run begins.
type begun struct {
	*backendtest.Batch
	run chan struct{}
}

func (b *begun) InputDone() {
	b.Batch.InputDone()
	close(b.run)
}

// A run that nobody waits for ends.
func TestCancelled(t *testing.T) {
	b := open(t, New)
	t.Cleanup(func() { closed(t, b) })
	inst := made(t, b, spec(t, "long.xml", `input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }`))
	batch := &begun{backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{floats("X", []int64{1}, 0.5)}}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		batch.End(inst.Execute(batch))
		close(done)
	}()
	<-batch.run
	batch.Cancel(0)
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on")
	}
	if err := batch.Answers()[0].Err; infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("%v", err)
	}
}

func TestDescribe(t *testing.T) {
	b := open(t, New)
	defer closed(t, b)
	d, err := b.Describe(t.Context(), spec(t, "twice_f16.xml", parameter("ENABLE_BATCH_PADDING", "NO")))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Inputs) != 1 || d.Inputs[0].Name != "X" || d.Inputs[0].Datatype != infer.FP16 || !slices.Equal(d.Inputs[0].Shape, []int64{-1, -1}) {
		t.Errorf("%+v", d)
	}
	sp := spec(t, "fixed.xml", parameter("ENABLE_BATCH_PADDING", "NO"))
	sp.Inspect = true
	if d, err = b.Describe(t.Context(), sp); err != nil || !slices.Equal(d.Inputs[0].Shape, []int64{1, 4}) || len(d.Remarks) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
}
