//go:build cgo

package openvino

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// TensorFlow's models have the names of their signature, or of their nodes.
func TestTensorFlow(t *testing.T) {
	shape := []int64{2, 4}
	a, b := floats("A", shape, 1, 2, 3, 4, 5, 6, 7, 8), floats("B", shape, 1, 1, 1, 1, 1, 1, 1, 1)
	diff := floats("DIFF", shape, 0, 1, 2, 3, 4, 5, 6, 7)
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		return backendtest.Subject{Backend: open(t, NewTensorFlow), Models: []backendtest.Model{
			{Spec: spec(t, "model.savedmodel", addsub+parameter("TF_NUM_INTRA_THREADS", "2")+parameter("TF_NUM_INTER_THREADS", "1")+parameter("TF_GRAPH_TAG", "serve")),
				Rows: 2, Inputs: []infer.Tensor{a, b}, Want: []infer.Tensor{floats("SUM", shape, 4, 6, 8, 10, 12, 14, 16, 18), diff}},
			{Spec: spec(t, "model.graphdef", addsub), Rows: 2, Inputs: []infer.Tensor{a, b},
				Want: []infer.Tensor{floats("SUM", shape, 2, 3, 4, 5, 6, 7, 8, 9), diff}},
		}}
	})
}

func TestTensorFlowRefused(t *testing.T) {
	b := open(t, NewTensorFlow)
	defer closed(t, b)
	text := `input { name: "A" data_type: TYPE_STRING dims: -1 } output { name: "BUCKET" data_type: TYPE_INT64 dims: -1 }`
	for want, c := range map[string][2]string{
		"StringToHashBucketFast":                           {"strings.graphdef", text},
		"parameter 'TF_SIGNATURE_DEF' is 'other'":          {"model.savedmodel", addsub + parameter("TF_SIGNATURE_DEF", "other")},
		"parameter 'TF_GRAPH_TAG' is 'train'":              {"model.savedmodel", addsub + parameter("TF_GRAPH_TAG", "train")},
		"parameter 'TF_INIT_OPS_FILE' is not supported":    {"model.savedmodel", addsub + parameter("TF_INIT_OPS_FILE", "init")},
		"parameter 'TF_NUM_INTRA_THREADS': 'x' is no":      {"model.savedmodel", addsub + parameter("TF_NUM_INTRA_THREADS", "x")},
		"testdata: it is a folder without saved_model.pb":  {".", addsub},
		"it is not there":                                  {"model.other", addsub},
		"configuration expects datatype TYPE_INT64 for in": {"model.graphdef", ints("TYPE_INT64")},
	} {
		_, err := b.Load(t.Context(), spec(t, c[0], c[1]))
		if err == nil || !strings.Contains(err.Error(), want) && !strings.HasPrefix(want, "testdata") {
			t.Errorf("Load: %v\nwant %q in it", err, want)
		}
	}
}

// A file that ends too early, or holds something else, fails its load in words.
func TestDamaged(t *testing.T) {
	b := open(t, New)
	defer closed(t, b)
	for _, file := range []string{"mlp.xml", "mlp.bin", "model.graphdef", "model.savedmodel/saved_model.pb"} {
		whole, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{nil, whole[:len(whole)/3], whole[:len(whole)-20], slices.Repeat([]byte{0xff}, len(whole)), []byte("no model")} {
			if file == "mlp.bin" && len(part) == len(whole) {
				continue // weights, too
			}
			dir := t.TempDir()
			model := filepath.Join(dir, strings.Split(file, "/")[0])
			if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), part, 0o600); err != nil {
				t.Fatal(err)
			}
			sp := spec(t, file, addsub)
			if file == "mlp.bin" {
				model = filepath.Join(dir, "mlp.xml")
			}
			if strings.HasPrefix(file, "mlp") {
				sp = spec(t, file, `max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }`)
			}
			sp.ModelDir, sp.ModelFile = dir, model
			m, err := b.Load(t.Context(), sp)
			if err == nil {
				closed(t, m)
				t.Errorf("%s with %d bytes of %d was loaded", file, len(part), len(whole))
				continue
			}
			if strings.Contains(err.Error(), dir) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%s with %d bytes: %v", file, len(part), err)
			}
		}
	}
}
