package python

import (
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/triton"
)

// interpreter is a Python that has numpy.
func interpreter(t *testing.T) string {
	t.Helper()
	for _, path := range []string{os.Getenv("SLUICE_TEST_PYTHON"), "../../../.cache/venv/bin/python", "python3"} {
		if path == "" {
			continue
		}
		if abs, err := filepath.Abs(path); err == nil && filepath.Base(path) != path {
			path = abs
		}
		try := exec.Command(path, "-c", "import numpy")
		try.Dir = t.TempDir() // files of this folder are no modules
		if try.Run() == nil {
			return path
		}
	}
	t.Skip("there is no Python with numpy (SLUICE_TEST_PYTHON)")
	return ""
}

func open(t *testing.T) *python {
	t.Helper()
	b, err := New(map[string]string{"python": interpreter(t), "cache-directory": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return b.(*python)
}

// specOf is a model of testdata, in a folder of its own.
func specOf(t *testing.T, source string, change func(*modelconfig.ModelConfig)) backend.Spec {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", source+".py"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "1", "model.py")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	c := &modelconfig.ModelConfig{Name: source, Backend: "python", DefaultModelFilename: "model.py", MaxBatchSize: 8,
		Input:  []*modelconfig.ModelInput{{Name: "IN", DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}}},
		Output: []*modelconfig.ModelOutput{{Name: "OUT", DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}}}}
	if change != nil {
		change(c)
	}
	return backend.Spec{Name: source, Version: 1, ModelDir: dir, ModelFile: file, Config: c, Instances: 1}
}

func decoupled(c *modelconfig.ModelConfig) {
	c.ModelTransactionPolicy = &modelconfig.ModelTransactionPolicy{Decoupled: true}
	c.MaxBatchSize = 0
}

func parameter(name, value string) func(*modelconfig.ModelConfig) {
	return func(c *modelconfig.ModelConfig) {
		if c.Parameters == nil {
			c.Parameters = map[string]*modelconfig.ModelParameter{}
		}
		c.Parameters[name] = &modelconfig.ModelParameter{StringValue: value}
	}
}

// floats is a tensor of one row.
func floats(name string, batched bool, values ...float32) infer.Tensor {
	t := infer.Tensor{Name: name, Datatype: infer.FP32, Shape: []int64{int64(len(values))}}
	if batched {
		t.Shape = []int64{1, int64(len(values))}
	}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return t
}

// many is a tensor that no frame holds.
func many(name string, n int) infer.Tensor {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	return floats(name, true, values...)
}

func TestSuite(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		return backendtest.Subject{
			Backend: open(t),
			Models: []backendtest.Model{
				{Spec: specOf(t, "identity", nil), Rows: 1, Inputs: []infer.Tensor{floats("IN", true, 1, 2)},
					Want: []infer.Tensor{floats("OUT", true, 1, 2)}, Bad: [][]infer.Tensor{{floats("IN", true, -1)}}},
				{Spec: specOf(t, "identity", nil), Rows: 1, Inputs: []infer.Tensor{many("IN", 100000)},
					Want: []infer.Tensor{many("OUT", 100000)}},
				{Spec: specOf(t, "late", decoupled), Inputs: []infer.Tensor{floats("IN", false, 2, 0.02)}, Answers: 2,
					Want: []infer.Tensor{floats("OUT", false, 7)}, Keeps: true},
				{Spec: specOf(t, "late", func(c *modelconfig.ModelConfig) { c.MaxBatchSize = 0 }),
					Inputs: []infer.Tensor{floats("IN", false, 1, 0.02)},
					Want:   []infer.Tensor{floats("OUT", false, 7)}, Keeps: true},
			},
			Refused: []backend.Spec{
				specOf(t, "broken", nil), specOf(t, "broken", parameter("AT", "initialize")), specOf(t, "broken",
					parameter("AT", "exit")),
				specOf(t, "identity", parameter("RETRY", "maybe")), specOf(t, "identity", parameter("MAX_RSS_MB",
					"-1")),
			},
		}
	})
}

// What the worker says of the backend is what is known of it where no worker is there.
func TestSameWord(t *testing.T) {
	rows, err := triton.Backends()
	if err != nil {
		t.Fatal(err)
	}
	var known *worker.Backend
	for _, b := range rows {
		if b.GetName() == "python" {
			known = b
		}
	}
	said := open(t).Info().Message("python")
	said.Gpu, said.OpenRequests, said.WholeBatches, said.Patches, said.Engine = false, 0, false, false, nil // of the worker's own
	if !proto.Equal(said, known) {
		t.Errorf("the worker says\n%v\nthe table\n%v", said, known)
	}
}

// A runner that somebody has changed is not used.
func TestTamperedRunner(t *testing.T) {
	p := open(t)
	defer p.Close()
	dir, err := p.runnerFolder()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "runner.py")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"changed":   func() error { return os.WriteFile(file, []byte("import os; os.abort()"), 0o600) },
		"removed":   func() error { return os.Remove(file) },
		"added":     func() error { return os.WriteFile(filepath.Join(dir, "numpy.py"), nil, 0o600) },
		"writable":  func() error { return os.Chmod(dir, 0o777) },
		"untouched": func() error { return nil },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		again, err := p.runnerFolder()
		if err != nil || again != dir {
			t.Fatalf("%s: %s, %v; want %s", name, again, err, dir)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != string(whole) {
			t.Errorf("%s: the runner is not as it was, %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "numpy.py")); err == nil {
			t.Errorf("%s: what was added is there", name)
		}
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v; want the runner's folder", len(left), err)
	}
}

// Names with characters of a shell are refused with the text of Triton's Python backend.
func TestModelNames(t *testing.T) {
	for name, want := range map[string]string{
		"a;b": "Invalid stub name: contains invalid characters", `a\b`: "Invalid stub name: contains invalid characters",
		"a-b_c.1": "",
	} {
		spec := specOf(t, "identity", nil)
		spec.Name = name
		m, err := open(t).Load(t.Context(), spec)
		if got := infer.CodeOf(err); want != "" && (err == nil || err.Error() != want || got != infer.InvalidArg) ||
			want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if m != nil && m.Close() != nil {
			t.Errorf("%s: not closed", name)
		}
	}
}
