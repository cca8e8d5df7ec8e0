//go:build onnxruntime && cgo

package onnxruntime

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

const raggedConfig = `name: "ragged" max_batch_size: 8
input { name: "R" data_type: TYPE_FP32 dims: [-1, 2] allow_ragged_batch: true }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "R" }
output { name: "Y" data_type: TYPE_FP32 dims: [-1, 2] }
output { name: "ROWS" data_type: TYPE_INT32 dims: 1 }
batch_output { target_name: "Y" source_input: "R" }`

// whole is a batch whose inputs are given as a worker would lay them out.
type whole struct {
	backend.Batch
	rows    int
	inputs  []infer.Tensor
	outputs []infer.Tensor
}

func (w *whole) Rows() int                     { return w.rows }
func (w *whole) Inputs() []infer.Tensor        { return w.inputs }
func (w *whole) Requests() []backend.Request   { return []backend.Request{anyRequest{}} }
func (w *whole) Alloc(n int64) ([]byte, error) { return make([]byte, n), nil }

func (w *whole) Passes(string, []byte) bool                    { return false }
func (w *whole) AllocOutput(_ string, n int64) ([]byte, error) { return make([]byte, n), nil }
func (w *whole) Outputs(outputs []infer.Tensor) error {
	w.outputs = append(w.outputs, outputs...)
	return nil
}
func (w *whole) InputDone() {}
func (w *whole) InferDone() {}

type anyRequest struct{ backend.Request }

func (anyRequest) Wants(string) bool        { return true }
func (anyRequest) Cancelled() bool          { return false }
func (anyRequest) Gateway() backend.Gateway { return nil }

// Two requests, of 4 and of 2 elements: the output that is cut by their shapes has six,
// the one of rows two.
func TestRaggedBatch(t *testing.T) {
	inst := started(t, opened(t, nil), spec(t, "ragged", raggedConfig))
	ends := infer.Tensor{Name: "ENDS", Datatype: infer.Int32, Shape: []int64{2}, Data: []byte{4, 0, 0, 0, 6, 0, 0, 0}}
	for range 2 {
		b := &whole{rows: 2, inputs: []infer.Tensor{floats("R", []int64{6}, 1, 2, 3, 4, 5, 6), ends}}
		if err := inst.Execute(b); err != nil {
			t.Fatal(err)
		}
		if len(b.outputs) != 2 {
			t.Fatalf("%d outputs, want 2", len(b.outputs))
		}
		same(t, b.outputs[0], floats("Y", []int64{6}, 2, 4, 6, 8, 10, 12))
		same(t, b.outputs[1], infer.Tensor{Name: "ROWS", Datatype: infer.Int32, Shape: []int64{2, 1}, Data: ends.Data})
	}
}

func TestRaggedLoadErrors(t *testing.T) {
	edit := func(old, new string) string { return strings.Replace(raggedConfig, old, new, 1) }
	tests := []struct{ name, model, config, want string }{
		{"the model's input is not flat", "addsub", strings.Replace(addsubConfig, "dims: 16", "dims: 16 allow_ragged_batch: true", 1),
			"unable to load model 'addsub', configuration expects model provides input with shape [-1]  for ragged input 'INPUT0', model provides [-1,16]"},
		{"optional", "ragged", edit("allow_ragged_batch: true", "allow_ragged_batch: true optional: true"),
			"unable to load model 'ragged', configuration expects model provides input with shape [-1] for ragged input 'R', which is not supported for optional input"},
		{"no such batch input", "ragged", edit(`"ENDS"`, `"END"`), "unexpected inference input 'END', allowed inputs are: ENDS, R"},
		{"a missing batch input", "ragged", edit(`target_name: "ENDS"`, ""), "unable to load model 'ragged', configuration expects 1 inputs, model provides 2"},
		{"the batch input's datatype", "ragged", edit("TYPE_INT32", "TYPE_FP32"),
			"unable to load model 'ragged', configuration expects datatype TYPE_FP32 for input 'ENDS', model provides TYPE_INT32"},
		{"the batch input's rank", "ragged", edit("BATCH_ACCUMULATED_ELEMENT_COUNT", "BATCH_ITEM_SHAPE"),
			"unable to load model 'ragged', batch input 'ENDS' of kind BATCH_ITEM_SHAPE has 2 dimensions, model provides [-1]"},
	}
	b := opened(t, nil)
	for _, tc := range tests {
		m, err := b.Load(t.Context(), spec(t, tc.model, tc.config))
		if err == nil {
			_ = m.Close()
			t.Errorf("%s: loaded, want an error", tc.name)
			continue
		}
		if err.Error() != tc.want || infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s: error %q of %v\nwant %q", tc.name, err, infer.CodeOf(err), tc.want)
		}
	}
}
