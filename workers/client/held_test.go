package client

import (
	"testing"
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
	if (&Workers{workers: []*worker{{}, {session: &session{}}}}).Scarce() {
		t.Error("without memory of its own")
	}
}
