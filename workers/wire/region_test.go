package wire

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func placedBatch() *Batch {
	b := sampleBatch()
	b.Requests[0].Outputs = []string{"OUT", "TEXT", "MORE"}
	b.Requests[0].Places = []Segment{InRegion(1, 64, 16), {}, InRegion(infer.MaxRegions, infer.MaxRegionSize, 0)}
	b.Inputs[0].Segments = []Segment{InRegion(3, 1, 16), {128, 32}}
	return b
}

// A segment in a region keeps its slot and offset up to their bounds, and no other
// segment is taken for one.
func TestRegionSegments(t *testing.T) {
	for _, slot := range []uint32{1, 2, infer.MaxRegions, slotMask} {
		for _, off := range []int64{0, 1, 1 << 40, 1<<41 - 1} {
			s := InRegion(slot, off, infer.MaxRegionSize)
			gotSlot, gotOff, ok := s.Region()
			if !ok || gotSlot != slot || gotOff != off || s.Length != infer.MaxRegionSize || s.Offset < 0 {
				t.Errorf("slot %d, offset %d come back as %d, %d, %v", slot, off, gotSlot, gotOff, ok)
			}
		}
	}
	for _, s := range []Segment{{}, {1 << 36, 5}, {InAnswers, 5}, {InAnswers | 77, 5}, {InAnswers | inRegion | 1<<41, 5}} {
		if slot, off, ok := s.Region(); ok {
			t.Errorf("%+v is taken for %d bytes at %d in region %d", s, s.Length, off, slot)
		}
	}
}

// The number of an input comes back, and no other segment is taken for one.
func TestInputSegments(t *testing.T) {
	for _, k := range []int{0, 1, 1 << 31} {
		s := IsInput(k, 1<<40)
		if got, ok := s.Input(); !ok || got != int64(k) || s.Length != 1<<40 {
			t.Errorf("input %d comes back as %d, %v", k, got, ok)
		}
		if _, _, ok := s.Region(); ok {
			t.Errorf("input %d is taken for a region", k)
		}
	}
	for _, s := range []Segment{{}, {1 << 36, 5}, {InAnswers, 5}, {InAnswers | isInput, 5}, {-1, 5}, InRegion(slotMask, 1, 5), InRegion(1<<19, 1, 5)} {
		if k, ok := s.Input(); ok {
			t.Errorf("%+v is taken for input %d", s, k)
		}
	}
}

func TestPlacesRoundTrip(t *testing.T) {
	var got Batch
	for _, want := range []*Batch{placedBatch(), sampleBatch(), placedBatch()} {
		if err := DecodeBatch(AppendBatch(nil, want), &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, want) {
			t.Errorf("got %+v\nwant %+v", &got, want)
		}
	}
	src := AppendBatch(nil, placedBatch())
	for n := range src {
		if err := DecodeBatch(src[:n], new(Batch)); err == nil {
			t.Errorf("batch of %d bytes instead of %d decodes", n, len(src))
		}
	}
}

// Destinations are in regions alone: a worker writes nothing to the request arena.
func TestPlacesRefused(t *testing.T) {
	for _, s := range []Segment{{0, 16}, {64, 0}, {InAnswers | 64, 16}, {InAnswers | inRegion, 16}, {-1, 16}, {inRegion | 1<<41, -1}} {
		b := placedBatch()
		b.Requests[0].Places[0] = s
		if err := DecodeBatch(AppendBatch(nil, b), new(Batch)); err == nil {
			t.Errorf("the destination %+v decodes", s)
		}
	}
}
