package client

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

// What is held of a worker's answers is counted, until it is let go of.
func TestScarceWhileAnswersAreHeld(t *testing.T) {
	const columns, size = 8 << 10, 4 * 8 << 10 // small enough not to be passed
	w := local()["lane"](t)
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	s, err := w.workers[0].current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var held []interface{ Release() }
	for !w.Scarce() {
		b, results := newBatch(1, columns)
		v.Executor(0).Execute(b)
		r := wait(t, results)
		if r.Err != nil {
			t.Fatalf("%d answers are held: %v", len(held), r.Err)
		}
		held = append(held, r.Memory)
	}
	if n := int64(len(held)); n*2*size < s.memory.responses.Size()/2 || n*size > s.memory.responses.Size() {
		t.Errorf("scarce after %d answers of two outputs of %d bytes in %d", n, size, s.memory.responses.Size())
	}
	for _, m := range held {
		m.Release()
	}
	if n := s.memory.held.Load(); n != 0 || w.Scarce() {
		t.Errorf("%d bytes are held after all were let go of", n)
	}
	far := &Workers{workers: []*worker{{}, {session: &session{}}}}
	if far.listLocked(); far.Scarce() {
		t.Error("without memory of its own")
	}
}

// A result for which the worker has no memory counts for a while, however little is held.
func TestScarceAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arena, err := shm.NewPeerArena("test", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer arena.Close()
		m := &peerMemory{responses: arena}
		r := &received{memory: m}
		if got := infer.ReasonOf(r.refusal(infer.Unavailable, infer.ReasonQueueFull, "no")); m.scarce() || got != infer.ReasonQueueFull {
			t.Errorf("a refusal for another reason: scarce %t, reason %q", m.scarce(), got)
		}
		if got := infer.ReasonOf(r.refusal(infer.Unavailable, infer.ReasonMemory, "no")); !m.scarce() || got != infer.ReasonMemory {
			t.Errorf("a refusal for want of memory: scarce %t, reason %q", m.scarce(), got)
		}
		time.Sleep(2 * time.Second)
		if m.scarce() {
			t.Error("scarce two seconds later")
		}
	})
}

// Results of a worker with which no memory is shared count in the budget, until they are let go of; over its limit
// their requests fail.
func TestStreamedResultsAreCounted(t *testing.T) {
	const columns, size = 8 << 10, 2 * 4 * 8 << 10 // of two outputs
	budget := &infer.Budget{Limit: 3 * size}
	w := startWith(t, Config{Local: []LocalWorker{as("worker")}, UseStream: true}, Deps{Log: logger(t), Responses: budget})
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	execute := func() *infer.Result {
		b, results := newBatch(1, columns)
		v.Executor(0).Execute(b)
		return wait(t, results)
	}
	var held []*infer.Buffer
	for n := range 3 {
		r := execute()
		if r.Err != nil || budget.Used() != int64(n+1)*size {
			t.Fatalf("result %d: %v, %d bytes counted, want %d", n, r.Err, budget.Used(), (n+1)*size)
		}
		held = append(held, r.Memory)
	}
	if r := execute(); infer.ReasonOf(r.Err) != infer.ReasonMemory || budget.Used() != 3*size || !budget.Scarce() {
		t.Errorf("over the limit: %v, %d bytes counted; want reason %s, %d", r.Err, budget.Used(), infer.ReasonMemory, 3*size)
	}
	for _, m := range held {
		m.Release()
	}
	if r := execute(); r.Err != nil {
		t.Errorf("after all were let go of: %v", r.Err)
	} else if r.Memory.Release(); budget.Used() != 0 {
		t.Errorf("%d bytes counted after all were let go of", budget.Used())
	}
}
