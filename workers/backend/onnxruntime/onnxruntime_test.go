//go:build onnxruntime && cgo

package onnxruntime

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// library is the path of the shared library; without one the test is skipped.
func library(t testing.TB) string {
	t.Helper()
	path := os.Getenv("SLUICE_ONNXRUNTIME")
	if path == "" {
		t.Skip("SLUICE_ONNXRUNTIME is not set: no ONNX Runtime library to test with (make test installs it)")
	}
	return path
}

func open(t testing.TB, options map[string]string) backend.Backend {
	t.Helper()
	b, err := New(library(t))(options)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// spec is a model of testdata with a configuration in text form, in a model folder as
// a repository has it.
func spec(t testing.TB, name, config string) backend.Spec {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join("testdata", name+".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "1", "model.onnx")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return backend.Spec{Name: name, Version: 1, ModelDir: dir, ModelFile: file, Config: parse(t, config), Instances: 1}
}

func parse(t testing.TB, config string) *modelconfig.ModelConfig {
	t.Helper()
	cfg := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatalf("config: %v", err)
	}
	return cfg
}

func floats(name string, shape []int64, values ...float32) infer.Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return infer.Tensor{Name: name, Datatype: infer.FP32, Shape: shape, Data: data}
}

func ints(name string, shape []int64, values ...int64) infer.Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	return infer.Tensor{Name: name, Datatype: infer.Int64, Shape: shape, Data: data}
}

func ramp(name string, rows int, from, step float32) infer.Tensor {
	values := make([]float32, rows*16)
	for i := range values {
		values[i] = from + step*float32(i)
	}
	return floats(name, []int64{int64(rows), 16}, values...)
}

const addsubConfig = `name: "addsub" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
input { name: "INPUT1" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: 16 }`

const stringsConfig = `name: "strings" max_batch_size: 8
input { name: "A" data_type: TYPE_STRING dims: 2 }
input { name: "B" data_type: TYPE_STRING dims: 2 }
output { name: "C" data_type: TYPE_STRING dims: 2 }`

const fixedConfig = `name: "fixed"
input { name: "A" data_type: TYPE_INT32 dims: 4 }
input { name: "B" data_type: TYPE_INT32 dims: 4 }
output { name: "C" data_type: TYPE_INT32 dims: 4 }`

const nonzeroConfig = `name: "nonzero"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "Y" data_type: TYPE_INT64 dims: [1, -1] }`

var typeNames = []string{"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
	"FP32", "FP64", "BF16", "BYTES"}

// typesModel runs every datatype through the model, with n elements a row.
func typesModel(t testing.TB, n int) backendtest.Model {
	var config strings.Builder
	config.WriteString("name: \"types\" max_batch_size: 8\n")
	var in, want []infer.Tensor
	for _, name := range typeNames {
		d := infer.ParseDatatype(name)
		for _, what := range []string{"in", "out"} {
			config.WriteString(what + "put { name: \"" + what + "_" + name + "\" data_type: " + configName(d) + " dims: -1 }\n")
		}
		tensor := infer.Tensor{Name: "in_" + name, Datatype: d, Shape: []int64{1, int64(n)}, Data: make([]byte, int64(n)*d.Size())}
		for i := range tensor.Data {
			tensor.Data[i] = byte(i % 2) // also right for BOOL
		}
		if d == infer.Bytes {
			var elements []string
			for i := range n {
				elements = append(elements, strings.Repeat("é\x00", i))
			}
			tensor = backendtest.BytesTensor("in_"+name, tensor.Shape, elements...)
		}
		in = append(in, tensor)
		tensor.Name = "out_" + name
		want = append(want, tensor)
	}
	return backendtest.Model{Spec: spec(t, "types", config.String()), Rows: 1, Inputs: in, Want: want}
}

func TestBackend(t *testing.T) {
	library(t)
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		absent := spec(t, "addsub", addsubConfig)
		absent.ModelFile = filepath.Join(absent.ModelDir, "2", "model.onnx")
		return backendtest.Subject{
			Backend: open(t, nil),
			Models: []backendtest.Model{
				{
					Spec: spec(t, "addsub", addsubConfig), Rows: 2,
					Inputs: []infer.Tensor{ramp("INPUT0", 2, 0, 1), ramp("INPUT1", 2, 5, 0)},
					Want:   []infer.Tensor{ramp("OUTPUT0", 2, 5, 1), ramp("OUTPUT1", 2, -5, 1)},
					Bad: [][]infer.Tensor{
						{ramp("INPUT0", 2, 0, 1)},
						{ramp("INPUT0", 2, 0, 1), floats("INPUT1", []int64{2, 3}, 1, 2, 3, 4, 5, 6)},
						{ramp("INPUT0", 2, 0, 1), {Name: "INPUT1", Datatype: infer.FP32, Shape: []int64{2, 16}, Data: make([]byte, 64)}},
						{ramp("INPUT0", 2, 0, 1), {Name: "INPUT1", Datatype: infer.Int32, Shape: []int64{2, 16}, Data: make([]byte, 128)}},
						{ramp("INPUT0", 2, 0, 1), ramp("INPUT0", 2, 0, 1)},
						{ramp("INPUT0", 2, 0, 1), ramp("OTHER", 2, 0, 1)},
					},
				},
				{
					Spec: spec(t, "strings", stringsConfig), Rows: 2,
					Inputs: []infer.Tensor{
						backendtest.BytesTensor("A", []int64{2, 2}, "a", "", "long enough to be no short string", "ü"),
						backendtest.BytesTensor("B", []int64{2, 2}, "b", "", "!", "\x00z"),
					},
					Want: []infer.Tensor{
						backendtest.BytesTensor("C", []int64{2, 2}, "ab", "", "long enough to be no short string!", "ü\x00z"),
					},
					Bad: [][]infer.Tensor{
						{backendtest.BytesTensor("A", []int64{2, 2}, "a", "b", "c"), backendtest.BytesTensor("B", []int64{2, 2}, "a", "b", "c", "d")},
						{backendtest.BytesTensor("A", []int64{2, 2}, "a", "b", "c", "d", "e"), backendtest.BytesTensor("B", []int64{2, 2}, "a", "b", "c", "d")},
						{{Name: "A", Datatype: infer.Bytes, Shape: []int64{1, 1}, Data: []byte{255, 255, 255, 255, 1}}, backendtest.BytesTensor("B", []int64{1, 1}, "a")},
						{{Name: "A", Datatype: infer.Bytes, Shape: []int64{1 << 40, 2}}, backendtest.BytesTensor("B", []int64{1, 1}, "a")},
					},
				},
				{
					Spec:   spec(t, "nonzero", nonzeroConfig),
					Inputs: []infer.Tensor{floats("X", []int64{5}, 1, 0, 2, 0, 3)},
					Want:   []infer.Tensor{ints("Y", []int64{1, 3}, 0, 2, 4)},
				},
				typesModel(t, 3),
				typesModel(t, 0),
			},
			Refused: []backend.Spec{absent, spec(t, "broken", fixedConfig), spec(t, "sequence", ""),
				spec(t, "fixed", strings.Replace(fixedConfig, "dims: 4", "dims: 5", 1))},
		}
	})
}
