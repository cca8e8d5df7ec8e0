package sequence_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// toldPlacements remembers what it was told, in words.
type toldPlacements struct{ said []string }

func (p *toldPlacements) Began(s infer.PlacedSequence) {
	p.said = append(p.said, fmt.Sprintf("began %s %d", s.Key, s.Epoch))
}

func (p *toldPlacements) Ended(s infer.PlacedSequence, lost bool) {
	p.said = append(p.said, fmt.Sprintf("ended %s %d lost=%v", s.Key, s.Epoch, lost))
}

// placementModel is a scheduler of one instance whose callers say what a picker said.
type placementModel struct {
	t    *testing.T
	s    *sequence.Scheduler
	told *toldPlacements
}

func newPlacementModel(t *testing.T) *placementModel {
	told := &toldPlacements{}
	cfg := sequence.Config{Model: schedule.Model{Name: "m", Version: 1, MaxBatchSize: 4}, Idle: time.Minute}
	s, batches := one(t, cfg, schedule.SequenceRules{Placements: told})
	go func() {
		for b := range batches {
			b.Deliver(zeroSums(b))
		}
	}()
	t.Cleanup(func() { close(batches) })
	return &placementModel{t, s, told}
}

// ask makes a call of sequence 1. flags has an S for START and an E for END; placed is the
// header's value, "" where there is no mesh.
func (m *placementModel) ask(placed *infer.Placement, flags string) string {
	r := request(1, 1, slices.Contains([]byte(flags), 'S'), slices.Contains([]byte(flags), 'E'))
	r.Model = "m"
	r.Origin = &infer.Envelope{Placement: placed}
	_, _, err := plain(m.t.Context(), m.s, r)
	if err == nil {
		return "ok"
	}
	if reason := infer.ReasonOf(err); reason != "" {
		return string(reason)
	}
	return infer.CodeOf(err).String()
}

// A sequence goes on for calls alone whose epoch is not newer than its own, and pickers are told
// when it begins and ends.
func TestPlacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPlacementModel(t)
		stream, other := infer.ParsePlacement("stream tenant"), infer.ParsePlacement("stream tenant")
		for i, step := range []struct {
			placed *infer.Placement
			flags  string
			want   string
		}{
			{infer.ParsePlacement("none"), "S", "sequence_unplaced"},
			{infer.ParsePlacement("none"), "", "sequence_unplaced"},
			{infer.ParsePlacement("rubbish"), "S", "sequence_unplaced"},
			{infer.ParsePlacement("unknown 90 k"), "", "invalid argument"},
			{infer.ParsePlacement("90 k"), "", "sequence_lost"}, // the picker thinks that it is here
			{infer.ParsePlacement("100 k"), "S", "ok"},
			{infer.ParsePlacement("100 k"), "", "ok"},
			{infer.ParsePlacement("unknown 90 k"), "", "ok"},
			{infer.ParsePlacement("none"), "", "sequence_unplaced"},
			{infer.ParsePlacement("101 k"), "", "sequence_lost"}, // a newer one lives elsewhere
			{infer.ParsePlacement("unknown 101 k"), "", "sequence_lost"},
			{infer.ParsePlacement("100 k"), "", "ok"},
			{infer.ParsePlacement("102 k"), "S", "ok"},
			{infer.ParsePlacement("101 k"), "S", "ok"}, // late
			{infer.ParsePlacement("102 k"), "", "ok"},
			{nil, "", "ok"},  // past the mesh
			{nil, "S", "ok"}, // takes it away
			{infer.ParsePlacement("102 k"), "", "sequence_lost"},
			{infer.ParsePlacement("200 k"), "S", "ok"},
			{infer.ParsePlacement("200 k"), "E", "ok"},
			{stream, "", "invalid argument"},
			{infer.ParsePlacement("201 k"), "SE", "ok"},
		} {
			if got := m.ask(step.placed, step.flags); got != step.want {
				t.Errorf("step %d: %s, want %s", i, got, step.want)
			}
		}
		want := []string{"began k 100", "began k 102", "began k 102", "ended k 102 lost=false", "began k 200", "ended k 200 lost=false",
			"began k 201", "ended k 201 lost=false"}
		if !slices.Equal(m.told.said, want) {
			t.Errorf("told %q", m.told.said)
		}
		for i, step := range []struct {
			placed *infer.Placement
			flags  string
			want   string
		}{
			{stream, "S", "ok"}, {stream, "", "ok"}, {other, "", "sequence_lost"}, {infer.ParsePlacement("unknown 1 tenant/m//1"), "", "ok"},
			{infer.ParsePlacement("stream tenant 1 tenant/m//1"), "", "ok"}, // its headers name the sequence
			{other, "S", "ok"}, {stream, "", "sequence_lost"}, {other, "E", "ok"},
		} {
			if got := m.ask(step.placed, step.flags); got != step.want {
				t.Errorf("step %d of streams: %s, want %s", i, got, step.want)
			}
		}
	})
}

// What ends with its worker, or with the model, is told of once.
func TestPlacedSequencesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPlacementModel(t)
		m.ask(infer.ParsePlacement("1 k"), "S")
		m.s.InstanceDown(0)
		m.s.InstanceUp(0)
		m.ask(infer.ParsePlacement("2 k"), "S")
		if err := m.s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"began k 1", "ended k 1 lost=true", "began k 2", "ended k 2 lost=false"}; !slices.Equal(m.told.said, want) {
			t.Errorf("told %q", m.told.said)
		}
	})
}
