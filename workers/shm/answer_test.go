package shm

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// Answers arrive in order and whole, also after the ring has gone round, and what finds it full
// is refused.
func TestAnswers(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Answers: 4})
	var dst [8]Answer
	next := uint64(0)
	for round := range 5 {
		for k := range 4 {
			if !gateway.Answer(Answer{Call: uint64(round*4 + k), Offset: 64, Length: -1, Token: uint64(k)}) {
				t.Fatalf("round %d: answer %d found no room", round, k)
			}
		}
		if gateway.Answer(Answer{Call: 99}) {
			t.Fatal("a fifth answer found room in a ring of four")
		}
		n, err := worker.Answers(dst[:])
		if err != nil || n != 4 {
			t.Fatalf("%d answers, %v", n, err)
		}
		for _, a := range dst[:n] {
			if a != (Answer{Call: next, Offset: 64, Length: -1, Token: next % 4}) {
				t.Errorf("got %+v as answer %d", a, next)
			}
			next++
		}
	}
}

// Who waits wakes for an answer, when it is stirred, and when the lane is shut.
func TestWaitAnswer(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{})
	var enough atomic.Bool
	woke := make(chan error)
	wait := func() { go func() { woke <- worker.WaitAnswer(enough.Load) }() }
	expect := func(want error) {
		t.Helper()
		select {
		case err := <-woke:
			if !errors.Is(err, want) {
				t.Errorf("woke with %v, want %v", err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nobody woke")
		}
	}
	wait()
	gateway.Answer(Answer{Call: 1})
	expect(nil)
	var dst [1]Answer
	if n, err := worker.Answers(dst[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	wait()
	enough.Store(true)
	worker.StirAnswers()
	expect(nil)
	enough.Store(false)
	wait()
	gateway.Shut()
	expect(ErrClosed)
}

// A gateway that says more answers than the ring holds is not believed.
func TestAnswersCorrupt(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Answers: 4})
	atomic.StoreUint64(gateway.ansHead, 5)
	if _, err := worker.Answers(make([]Answer, 1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}

// What is completed quietly arrives with what is completed next, and makes no deadlock of a
// full ring.
func TestCompleteQuietly(t *testing.T) {
	gateway, worker := openLanes(t, LaneConfig{Completions: 2})
	sent := make(chan error, 1)
	go func() {
		var err error
		for k := range 9 {
			err = errors.Join(err, worker.CompleteQuietly(Completion{Kind: AnswerTaken, Token: uint64(k)}))
		}
		sent <- errors.Join(err, worker.Complete(Completion{Kind: Called, Batch: 7}))
	}()
	for k := range 9 {
		if c := receive(t, gateway); c.Kind != AnswerTaken || c.Token != uint64(k) {
			t.Errorf("got %+v as completion %d", c, k)
		}
	}
	if c := receive(t, gateway); c.Kind != Called || c.Batch != 7 {
		t.Errorf("got %+v, want the call", c)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
