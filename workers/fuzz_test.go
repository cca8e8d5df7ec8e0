package workers

import (
	"io"
	"log/slog"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// heapTransport gives every segment as many zeros as it says.
type heapTransport struct{ queue }

func (h *heapTransport) view(_ int, s wire.Segment) ([]byte, error) {
	const most = 1 << 16
	if s.Length > most {
		return nil, infer.Errorf(infer.Internal, "too long")
	}
	data := make([]byte, s.Length)
	for i := range data {
		data[i] = byte(s.Offset >> (8 * (i & 7)))
	}
	return data, nil
}

// FuzzBatch takes any batch that decodes through all that a backend may ask of it and
// wants one final answer for each request.
func FuzzBatch(f *testing.F) {
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Rows: 3, Requests: []wire.Request{{Rows: 1}, {Rows: 2, Cancel: 1}},
		Inputs: []wire.Input{{Name: "a", Datatype: infer.FP32, Shape: []int64{3, 2}, Segments: []wire.Segment{{Length: 8}, {Length: 16}}},
			{Name: "b", Datatype: infer.Bytes, Shape: []int64{3}, Segments: []wire.Segment{{Offset: 1, Length: 15}}}}}))
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Requests: []wire.Request{{Outputs: []string{"x"}}},
		Inputs: []wire.Input{{Name: "a", Datatype: infer.FP64, Shape: []int64{0, 2}}}}))
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		inst := &instance{worker: &Worker{log: log}, log: log, transport: &heapTransport{queue{limit: 1 << 20}}}
		x := &execution{inst: inst}
		if wire.DecodeBatch(data, &x.batch) != nil {
			return
		}
		x.flags = make([]uint32, len(x.batch.Requests))
		err := x.prepare()
		if err == nil {
			for _, r := range x.Requests() {
				r.Inputs()
				r.Wants("x")
			}
			x.allCancelled()
			if len(x.requests) > 1 {
				err = x.Fail(0, infer.Errorf(infer.Internal, "first"))
			}
			if err == nil {
				err = x.Outputs(x.Inputs())
			}
		}
		x.finish(err)
		r := &x.final.result
		if x.open > 0 && r.Err == "" || r.Err == "" && len(r.Responses) > 0 && len(r.Responses) != len(x.requests) {
			t.Fatalf("%d requests, result %+v", len(x.requests), r)
		}
		if err := wire.DecodeResult(wire.AppendResult(nil, r), &wire.Result{}); err != nil {
			t.Fatalf("the result does not decode: %v", err)
		}
	})
}
