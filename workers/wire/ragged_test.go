package wire

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func raggedBatch() *Batch {
	return &Batch{
		ID: 9, Rows: 3,
		Requests: []Request{{Rows: 1, Params: infer.Params{}, Outputs: []string{}}, {Rows: 2, Cancel: 1, Params: infer.Params{}, Outputs: []string{}}},
		Inputs: []Input{
			{Name: "R", Datatype: infer.FP32, Shape: []int64{7}, Layout: infer.Ragged, Extents: [][]int64{{1, 3}, {2, 2}}, Segments: []Segment{{64, 12}, {128, 16}}},
			{Name: "S", Datatype: infer.Int64, Shape: []int64{2}, Layout: infer.Shared, Extents: [][]int64{}, Segments: []Segment{{256, 16}}},
			{Name: "C", Datatype: infer.Int32, Shape: []int64{2}, Layout: infer.Computed, Extents: [][]int64{}, Segments: []Segment{{320, 8}}},
			{Name: "W", Datatype: infer.Bytes, Shape: []int64{0}, Layout: infer.Ragged, Extents: [][]int64{{0}, {2, 0}}, Segments: []Segment{}},
		},
	}
}

func TestRaggedRoundTrip(t *testing.T) {
	plain := sampleBatch()
	var got Batch
	for _, want := range []*Batch{raggedBatch(), plain, raggedBatch(), raggedBatch()} {
		if err := DecodeBatch(AppendBatch(nil, want), &got); err != nil {
			t.Fatal(err)
		}
		for i := range want.Inputs {
			if want.Inputs[i].Extents == nil {
				want.Inputs[i].Extents = [][]int64{}
			}
		}
		if !same(&got, want) {
			t.Errorf("got %+v\nwant %+v", &got, want)
		}
	}
}

func TestRaggedFaults(t *testing.T) {
	tests := []struct {
		name   string
		change func(b *Batch)
		want   string
	}{
		{"too few elements", func(b *Batch) { b.Inputs[0].Extents[1] = []int64{2, 1} }, "requests of 5 elements"},
		{"two dimensions", func(b *Batch) { b.Inputs[0].Shape = []int64{7, 1} }, "requests of 7 elements"},
		{"an extent is missing", func(b *Batch) { b.Inputs[3].Extents = b.Inputs[3].Extents[:1] }, "ends early"},
		{"an unknown layout", func(b *Batch) { b.Inputs[1].Layout = infer.Computed + 1 }, "layout 255"},
		{"too many elements", func(b *Batch) { b.Inputs[3].Extents[1] = []int64{1 << 40, 1 << 40} }, "extent of shape"},
	}
	for _, tc := range tests {
		b := raggedBatch()
		tc.change(b)
		var got Batch
		err := DecodeBatch(AppendBatch(nil, b), &got)
		if err == nil || !strings.Contains(err.Error(), tc.want) || infer.CodeOf(err) != infer.Internal {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
	whole := AppendBatch(nil, raggedBatch())
	for n := range whole {
		var got Batch
		if err := DecodeBatch(whole[:n], &got); err == nil {
			t.Errorf("the first %d of %d bytes are no fault", n, len(whole))
		}
	}
}
