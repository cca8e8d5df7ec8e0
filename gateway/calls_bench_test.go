package gateway

import (
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// BenchmarkCallBack measures a call of a model (identity, 16 FP32, one host) without front ends,
// and in turns with it an inference of the same model without front ends: ns/call and
// ns/inference. A call may cost what two inferences do: it goes from the caller's process to the
// gateway and back, and in between it is one.
func BenchmarkCallBack(b *testing.B) {
	const each = 100
	g, _ := startModels(b, callModels(), func(*Config) {})
	to := &endSink{}
	run := func(model string, params infer.Params) {
		req := &infer.Request{Model: model, Streaming: true, Params: params,
			Inputs: []infer.Tensor{{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{1, 16}, Data: make([]byte, 64)}}}
		if g.pipeline.Infer(b.Context(), req, to); to.err != nil {
			b.Fatal(to.err)
		}
	}
	calls := infer.Params{{Name: "call", Value: infer.Value{Kind: infer.KindString, Str: "id"}},
		{Name: "times", Value: infer.Value{Kind: infer.KindInt64, Int: each}}}
	var alone, called time.Duration
	for b.Loop() {
		begin := time.Now()
		for range each {
			run("id", nil)
		}
		middle := time.Now()
		run("one", calls)
		alone += middle.Sub(begin)
		called += time.Since(middle)
	}
	b.ReportMetric(float64(alone.Nanoseconds())/float64(each*b.N), "ns/inference")
	b.ReportMetric(float64(called.Nanoseconds())/float64(each*b.N), "ns/call")
}

// endSink gives responses back and keeps how the request ended.
type endSink struct{ err error }

func (s *endSink) Large(*infer.Response) bool { return false }

func (s *endSink) Send(resp *infer.Response) error {
	resp.Memory.Release()
	return nil
}

func (s *endSink) Done(err error) infer.Flusher {
	s.err = err
	return nil
}
