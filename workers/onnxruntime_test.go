//go:build onnxruntime

package workers_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// buildTags are those that the real worker is built with.
const buildTags = "onnxruntime"

// TestProcessExecutesONNX takes a model that adds and subtracts its two inputs through
// the real worker: describe, load, batches on the lane, unload.
func TestProcessExecutesONNX(t *testing.T) {
	if os.Getenv("SLUICE_ONNXRUNTIME") == "" {
		t.Skip("SLUICE_ONNXRUNTIME does not name the shared library")
	}
	g, _ := startProcess(t)
	d := loadONNX(t, g)
	for id := uint64(1); id <= 5; id++ {
		const rows = 3
		width := int(d.Inputs[0].Shape[1])
		if width < 0 {
			width = 4
		}
		b := &wire.Batch{ID: id, Rows: rows}
		for i := range rows {
			b.Requests = append(b.Requests, wire.Request{Rows: 1, Cancel: uint32(i)})
		}
		var data [][]byte
		for k, in := range d.Inputs {
			b.Inputs = append(b.Inputs, wire.Input{Name: in.Name, Datatype: infer.Datatype(in.DataType), Shape: []int64{rows, int64(width)},
				Segments: make([]wire.Segment, 1)})
			data = append(data, floats(rows*width, float32(k+1)))
		}
		g.post(0, g.layOut(t, b, data...))
		done, res := g.result(t)
		if res.Err != "" || len(res.Outputs) != 2 {
			t.Fatalf("batch %d: %+v", id, res)
		}
		for k, want := range []float32{3, -1} {
			out := g.data(t, res.Outputs[k])
			if got := math.Float32frombits(binary.LittleEndian.Uint32(out)); got != want || len(out) != 4*rows*width {
				t.Errorf("output %s: %v in %d bytes, want %v", res.Outputs[k].Name, got, len(out), want)
			}
		}
		g.lane.Release(done.Token)
	}
	unload(t, g, 1)
}

// loadONNX loads the model that adds and subtracts into the first mailbox, handle 1.
func loadONNX(t testing.TB, g *gateway) *worker.DescribeResponse {
	for _, b := range g.hello(t, true).Backends {
		if b.Name == "onnxruntime" && (b.Unavailable != "" || b.Version == "") {
			t.Fatalf("%v", b)
		}
	}
	dir := filepath.Join(t.TempDir(), "m")
	file := filepath.Join(dir, "1", "model.onnx")
	data := must(os.ReadFile("backend/onnxruntime/testdata/addsub.onnx"))(t)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	d := must(g.client.Describe(ctx(t), &worker.DescribeRequest{Backend: "onnxruntime", ModelFile: file, Config: &modelconfig.ModelConfig{Name: "m"}}))(t)
	c := &modelconfig.ModelConfig{Name: "m", Backend: "onnxruntime", MaxBatchSize: 8}
	for _, in := range d.Inputs {
		c.Input = append(c.Input, &modelconfig.ModelInput{Name: in.Name, DataType: in.DataType, Dims: in.Shape[1:]})
	}
	for _, out := range d.Outputs {
		c.Output = append(c.Output, &modelconfig.ModelOutput{Name: out.Name, DataType: out.DataType, Dims: out.Shape[1:]})
	}
	load := loadRequest(1, c, 0)
	load.ModelDir, load.ModelFile = dir, file
	g.load(t, load)
	return d
}

func floats(n int, v float32) []byte {
	var out []byte
	for range n {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}
