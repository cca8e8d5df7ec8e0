//go:build onnxruntime && cgo

package onnxruntime

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

const mlpConfig = `name: "mlp" max_batch_size: 64
input { name: "X" data_type: TYPE_FP32 dims: 512 }
output { name: "Y" data_type: TYPE_FP32 dims: 128 }
`

// fastBatch is a batch that costs nothing itself: its memory is one block.
type fastBatch struct {
	backend.Memory // of no use to a backend of host memory

	rows     int
	inputs   []infer.Tensor
	requests []backend.Request
	mem      []byte
}

func (b *fastBatch) Rows() int                   { return b.rows }
func (b *fastBatch) Inputs() []infer.Tensor      { return b.inputs }
func (b *fastBatch) Requests() []backend.Request { return b.requests }
func (b *fastBatch) Alloc(n int64) ([]byte, error) {
	return b.mem[:n], nil
}
func (b *fastBatch) Passes(string, []byte) bool                            { return false }
func (b *fastBatch) AllocOutput(_ string, n int64) ([]byte, error)         { return b.Alloc(n) }
func (b *fastBatch) Outputs([]infer.Tensor) error                          { return nil }
func (b *fastBatch) Respond(int, []infer.Tensor, infer.Params, bool) error { return nil }
func (*fastBatch) RespondError(int, error) (bool, error)                   { panic("unused") }
func (b *fastBatch) Fail(_ int, err error) error                           { return err }
func (b *fastBatch) Repeat(int, []infer.Tensor) error                      { return nil }
func (b *fastBatch) InputDone()                                            {}
func (b *fastBatch) InferDone()                                            {}
func (b *fastBatch) Keep() (backend.Open, error)                           { return nil, errors.New("kept") }

type fastRequest struct{ inputs []infer.Tensor }

func (fastRequest) ID() string                                    { return "" }
func (fastRequest) Rows() int                                     { return 1 }
func (fastRequest) Params() infer.Params                          { return nil }
func (fastRequest) Correlation() (c infer.Correlation, _, _ bool) { return c, false, false }
func (fastRequest) Wants(string) bool                             { return true }
func (fastRequest) Cancelled() bool                               { return false }
func (fastRequest) Gateway() backend.Gateway                      { return nil }
func (r fastRequest) Inputs() []infer.Tensor                      { return r.inputs }

func newFastBatch(rows int, inputs []infer.Tensor, output int) *fastBatch {
	b := &fastBatch{rows: rows, inputs: inputs, mem: make([]byte, output)}
	for range max(rows, 1) {
		b.requests = append(b.requests, fastRequest{})
	}
	return b
}

func BenchmarkMLP(b *testing.B) {
	inst := started(b, opened(b, nil), spec(b, "mlp", mlpConfig))
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			in := infer.Tensor{Name: "X", Datatype: infer.FP32, Shape: []int64{int64(n), 512}, Data: make([]byte, n*2048)}
			for i := range in.Data {
				in.Data[i] = byte(i%4) * 0x10
			}
			batch := newFastBatch(n, []infer.Tensor{in}, n*512)
			b.ReportAllocs()
			best := time.Hour
			for b.Loop() {
				begin := time.Now()
				if err := inst.Execute(batch); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(begin))
			}
			b.ReportMetric(float64(best.Nanoseconds())/1e3, "min-us/op") // means are noise on a busy machine
		})
	}
}

// BenchmarkOverhead is a run of next to no work.
func BenchmarkOverhead(b *testing.B) {
	inst := started(b, opened(b, nil), spec(b, "addsub", addsubConfig))
	batch := newFastBatch(1, []infer.Tensor{ramp("INPUT0", 1, 0, 1), ramp("INPUT1", 1, 1, 0)}, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := inst.Execute(batch); err != nil {
			b.Fatal(err)
		}
	}
}
