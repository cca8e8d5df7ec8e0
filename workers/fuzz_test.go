package workers

import (
	"errors"
	"io"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/region"
	"github.com/sluice-serve/sluice/workers/wire"
)

// heapTransport gives every segment as many zeros as it says.
type heapTransport struct{ queue }

func (h *heapTransport) view(_ *execution, _ int, s wire.Segment) ([]byte, error) {
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

// regionsForFuzz has a region of a page in slot 1, and one that was cut off in slot 2.
func regionsForFuzz(f testing.TB) *region.Table {
	t := region.NewTable()
	for slot := uint32(1); slot <= 2; slot++ {
		fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC)
		if err != nil {
			f.Fatal(err)
		}
		if err := unix.Ftruncate(fd, 4096); err != nil {
			f.Fatal(err)
		}
		cut, err := unix.Dup(fd)
		if err != nil {
			f.Fatal(err)
		}
		if err := t.Open(region.Config{Slot: slot, Name: "r", Size: 4096}, fd); err != nil {
			f.Fatal(err)
		}
		if slot == 2 {
			err = unix.Ftruncate(cut, 0)
		}
		if err := errors.Join(err, unix.Close(cut)); err != nil {
			f.Fatal(err)
		}
	}
	f.Cleanup(t.CloseAll)
	return t
}

// FuzzBatch takes any batch that decodes through all that a backend may ask of it and
// wants one final answer for each request.
func FuzzBatch(f *testing.F) {
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Rows: 3, Requests: []wire.Request{{Rows: 1}, {Rows: 2, Cancel: 1}},
		Inputs: []wire.Input{{Name: "a", Datatype: infer.FP32, Shape: []int64{3, 2}, Segments: []wire.Segment{{Length: 8}, {Length: 16}}},
			{Name: "b", Datatype: infer.Bytes, Shape: []int64{3}, Segments: []wire.Segment{{Offset: 1, Length: 15}}}}}))
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Requests: []wire.Request{{Outputs: []string{"x"}}},
		Inputs: []wire.Input{{Name: "a", Datatype: infer.FP64, Shape: []int64{0, 2}}}}))
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Rows: 4, Requests: []wire.Request{
		{Rows: 1, Outputs: []string{"a"}, Places: []wire.Segment{wire.InRegion(1, 100, 8)}}, {Rows: 2, Cancel: 1}, {Rows: 1}},
		Inputs: []wire.Input{
			{Name: "a", Datatype: infer.FP32, Shape: []int64{4, 2}, Segments: []wire.Segment{wire.InRegion(1, 0, 8), {Length: 16}, wire.InRegion(2, 0, 8)}},
			{Name: "b", Datatype: infer.Bytes, Shape: []int64{4}, Segments: []wire.Segment{{Length: 4}, wire.InRegion(1, 4088, 8), wire.InRegion(3, 0, 4)}},
			{Name: "c", Datatype: infer.Int32, Shape: []int64{4}, Layout: infer.Ragged, Extents: [][]int64{{1}, {0}, {3}},
				Segments: []wire.Segment{wire.InRegion(1, 1, 4), wire.InRegion(1, 4090, 12)}}}}))
	f.Add(wire.AppendBatch(nil, &wire.Batch{ID: 1, Requests: []wire.Request{{Outputs: []string{"a"}, Places: []wire.Segment{wire.InRegion(1, 64, 16)}}},
		Inputs: []wire.Input{{Name: "a", Datatype: infer.FP64, Shape: []int64{2}, Segments: []wire.Segment{wire.InRegion(1, 8, 16)}}}}))
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	regions := regionsForFuzz(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		inst := &instance{worker: &Worker{log: log, config: Config{MaxMessage: 1 << 20}}, log: log, transport: &heapTransport{queue{limit: 1 << 20}},
			connection: &connection{regions: regions}}
		defer func() {
			for _, slot := range []uint32{1, 2} {
				if r := regions.Acquire(slot); r == nil {
					t.Fatalf("region %d was closed", slot)
				} else {
					r.Release()
				}
			}
		}()
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
		x.releaseRegions()
		r := &x.final.result
		if x.open > 0 && r.Err == "" || r.Err == "" && len(r.Responses) > 0 && len(r.Responses) != len(x.requests) {
			t.Fatalf("%d requests, result %+v", len(x.requests), r)
		}
		if err := wire.DecodeResult(wire.AppendResult(nil, r), &wire.Result{}); err != nil {
			t.Fatalf("the result does not decode: %v", err)
		}
	})
}
