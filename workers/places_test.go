package workers

import (
	"log/slog"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// fine stands for no error.
const fine = infer.Code(255)

// A batch whose segments in regions have other bytes than its shapes say, or more than a
// worker copies, is refused before anything is read.
func TestSegmentsInRegionsFitShapes(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	inst := &instance{worker: &Worker{log: log, config: Config{MaxMessage: 1000}}, log: log,
		transport: &heapTransport{queue{limit: 1 << 20}}, connection: &connection{regions: regionsForFuzz(t)}}
	in := func(d infer.Datatype, shape []int64, segments ...wire.Segment) wire.Input {
		return wire.Input{Name: "a", Datatype: d, Shape: shape, Segments: segments}
	}
	for _, tc := range []struct {
		name string
		rows []int
		in   wire.Input
		want infer.Code // of the batch, or of its only answer; fine: none
	}{
		{"as its shape", []int{1}, in(infer.FP32, []int64{1, 4}, wire.InRegion(1, 0, 16)), fine},
		{"too short", []int{1}, in(infer.FP32, []int64{1, 4}, wire.InRegion(1, 0, 12)), infer.Internal},
		{"too long", []int{1}, in(infer.Int32, []int64{1, 4}, wire.InRegion(1, 0, 20)), infer.Internal},
		{"empty", []int{1}, in(infer.FP64, []int64{1, 4}, wire.InRegion(1, 0, 0)), infer.Internal},
		{"no datatype", []int{1}, in(infer.Invalid, []int64{1, 4}, wire.InRegion(1, 0, 16)), infer.Internal},
		{"two that make up for one another", []int{1, 1}, in(infer.FP32, []int64{2, 4}, wire.InRegion(1, 0, 12), wire.InRegion(1, 0, 20)), infer.Internal},
		{"one for two", []int{1, 1}, in(infer.FP32, []int64{2, 4}, wire.InRegion(1, 0, 16)), infer.Internal},
		{"in place, more than is copied", []int{1}, in(infer.FP32, []int64{1, 400}, wire.InRegion(1, 0, 1600)), fine},
		{"not aligned, more than is copied", []int{1}, in(infer.FP32, []int64{1, 400}, wire.InRegion(1, 1, 1600)), infer.InvalidArg},
		{"integers, more than is copied", []int{1}, in(infer.Int32, []int64{1, 400}, wire.InRegion(1, 0, 1600)), infer.InvalidArg},
		{"texts, more than is copied", []int{1}, in(infer.Bytes, []int64{1, 400}, wire.InRegion(1, 0, 1600)), infer.InvalidArg},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := &execution{inst: inst}
			x.batch = wire.Batch{ID: 1, Inputs: []wire.Input{tc.in}}
			for i, n := range tc.rows {
				x.batch.Rows += n
				x.batch.Requests = append(x.batch.Requests, wire.Request{Rows: n, Cancel: uint32(i)})
			}
			x.flags = make([]uint32, len(tc.rows))
			err := x.prepare()
			defer x.releaseRegions()
			got := fine
			if err != nil {
				got = infer.CodeOf(err)
			} else if r := x.final.result.Responses; len(r) == 1 {
				got = r[0].Code
			}
			if got != tc.want {
				t.Errorf("got %v (%v), want %v", got, err, tc.want)
			}
		})
	}
}
