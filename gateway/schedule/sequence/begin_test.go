package sequence_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// heldSequences counts sequences: those that live, and all that there were.
type heldSequences struct {
	now, all atomic.Int64
	most     int64 // 0: any number
}

var errMost = errors.New("no further sequence")

func (h *heldSequences) BeginSequence(_ context.Context, _ *infer.Request) (schedule.SequenceHold, error) {
	if h.most > 0 && h.now.Load() >= h.most {
		return nil, errMost
	}
	h.now.Add(1)
	h.all.Add(1)
	return &heldSequence{h: h}, nil
}

type heldSequence struct {
	h    *heldSequences
	over atomic.Bool
}

func (s *heldSequence) End() {
	if s.over.Swap(true) {
		panic("a sequence ends twice")
	}
	s.h.now.Add(-1)
}

// one is a scheduler with one instance, of one slot, whose batches wait in a channel.
func one(t *testing.T, cfg sequence.Config, rules schedule.SequenceRules) (*sequence.Scheduler, chan *infer.Batch) {
	t.Helper()
	p := partly{make(chan *infer.Batch, 8)}
	s, err := sequence.New(cfg, schedule.Deps{Executors: []infer.Executor{p}, Clock: schedule.GoClock{},
		IDs: new(atomic.Uint64), Log: slog.New(slog.DiscardHandler), Sequences: rules})
	if err != nil {
		t.Fatal(err)
	}
	return s, p.batches
}

func zeroSums(b *infer.Batch) *infer.Result {
	rows := max(b.Rows, 1)
	return &infer.Result{Outputs: []infer.Tensor{{Name: "SUM", Datatype: infer.Int32, Shape: []int64{int64(rows), 1},
		Data: make([]byte, 4*rows)}}}
}

// A limit counts a sequence from its START on until its slot is free, and counts none of
// those that a caller may not have, or that a model has when it is unloaded.
func TestSequencesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldSequences{most: 2}
		cfg := sequence.Config{Model: schedule.Model{Name: "m", Version: 1, MaxBatchSize: 4}}
		s, batches := one(t, cfg, schedule.SequenceRules{Limits: held})
		ask := func(id uint64, start, end bool) error {
			_, _, err := plain(t.Context(), s, request(id, 1, start, end))
			return err
		}
		go func() {
			for b := range batches {
				b.Deliver(zeroSums(b))
			}
		}()
		defer close(batches)
		for i, step := range []struct {
			id         uint64
			start, end bool
			want       error
			held       int64
		}{
			{1, true, false, nil, 1}, {1, false, false, nil, 1}, {1, true, false, nil, 1}, // anew
			{2, true, false, nil, 2}, {3, true, false, errMost, 2}, {2, true, false, nil, 2},
			{2, false, true, nil, 1}, {3, true, true, nil, 1}, {4, true, false, nil, 2},
		} {
			if err := ask(step.id, step.start, step.end); !errors.Is(err, step.want) || held.now.Load() != step.held {
				t.Errorf("step %d: %v, %d are counted; want %v, %d", i, err, held.now.Load(), step.want, step.held)
			}
		}
		if err := s.Drain(t.Context()); err != nil || held.now.Load() != 0 {
			t.Errorf("%v, %d are counted afterwards", err, held.now.Load())
		}
	})
}

// A model whose last batch never ends counts nobody's sequences once it is given up.
func TestNothingIsCountedAfterDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldSequences{}
		cfg := sequence.Config{Model: schedule.Model{Name: "m", Version: 1}}
		s, batches := one(t, cfg, schedule.SequenceRules{Limits: held})
		ended := make(chan error, 2)
		for id := range uint64(2) {
			go func() {
				_, _, err := plain(t.Context(), s, request(id+1, 1, true, false))
				ended <- err
			}()
		}
		b := <-batches
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Drain(ctx); err == nil {
			t.Error("it drained")
		}
		if n := held.now.Load(); n != 0 || held.all.Load() != 2 {
			t.Errorf("%d of %d sequences are counted", n, held.all.Load())
		}
		b.Deliver(&infer.Result{Err: infer.ErrWorkerLost})
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("a request went well")
			}
		}
	})
}

// A START that finds no slot in time is refused with its reason.
func TestNoSlotInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := sequence.Config{Model: schedule.Model{Name: "m", Version: 1}, Idle: 2 * time.Minute}
		s, batches := one(t, cfg, schedule.SequenceRules{Wait: time.Minute})
		ended := make(chan error, 1)
		go func() {
			_, _, err := plain(t.Context(), s, request(1, 1, true, false))
			ended <- err
		}()
		b := <-batches
		begin := time.Now()
		_, _, err := plain(t.Context(), s, request(2, 1, true, false))
		// not before the slots are free of those that were forgotten
		const want = "sequence 2 of model 'm' has waited 2m0s for one of 1 slots"
		if err == nil || err.Error() != want || infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("got %v, want %s", err, want)
		}
		if reason := infer.ReasonOf(err); reason != infer.ReasonSequenceSlots {
			t.Errorf("got reason %q", reason)
		}
		if took := time.Since(begin); took != 2*time.Minute {
			t.Errorf("after %v", took)
		}
		b.Deliver(zeroSums(b))
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
