package memory

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/infer"
)

type fakeArena struct{ size, used int64 }

func (a *fakeArena) Alloc(n int64) ([]byte, error) {
	if a.used+n > a.size {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "full")
	}
	a.used += n
	return make([]byte, n), nil
}

func (a *fakeArena) Free(b []byte) { a.used -= int64(len(b)) }

func TestBodiesAreBounded(t *testing.T) {
	arena := &fakeArena{size: 1 << 20}
	m := &Bodies{Arena: arena, Limit: 1<<20 + 100}
	big, err := m.Body(1 << 20)
	if err != nil || arena.used != 1<<20 {
		t.Fatalf("1 MiB: %v, arena holds %d", err, arena.used)
	}
	if _, err := m.Body(200); infer.ReasonOf(err) != infer.ReasonMemory {
		t.Errorf("over the limit: %v, want reason %s", err, infer.ReasonMemory)
	}
	small, err := m.Body(100)
	if err != nil {
		t.Fatal(err)
	}
	small.Retain()
	small.Release()
	if m.InUse() != 1<<20+100 {
		t.Errorf("in use %d with a reference held", m.InUse())
	}
	small.Release()
	big.Release()
	if m.InUse() != 0 || arena.used != 0 {
		t.Errorf("after the releases: %d in use, arena %d", m.InUse(), arena.used)
	}
}

func TestArenaFull(t *testing.T) {
	m := &Bodies{Arena: &fakeArena{size: 100}}
	var e *infer.Error
	if _, err := m.Body(ArenaFrom); !errors.As(err, &e) || m.InUse() != 0 {
		t.Errorf("full arena: %v, %d in use", err, m.InUse())
	}
}

func TestBodyAllocations(t *testing.T) {
	m := &Bodies{}
	n := testing.AllocsPerRun(1000, func() {
		b, err := m.Body(2048)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	})
	if n > 2 { // the pool may lose an entry to the collector, and the method value
		t.Errorf("%v allocations a body", n)
	}
}

func TestScarce(t *testing.T) {
	arena := &fakeArena{size: 1 << 20}
	m := &Bodies{Arena: arena, ArenaSize: arena.size, Limit: 4 << 20}
	half, err := m.Body(1 << 19)
	if err != nil || m.Scarce() {
		t.Fatalf("half of the arena: %v, scarce %t", err, m.Scarce())
	}
	more, err := m.Body(ArenaFrom)
	if err != nil || !m.Scarce() {
		t.Fatalf("more than half: %v, scarce %t", err, m.Scarce())
	}
	more.Release()
	if m.Scarce() {
		t.Error("scarce after it was given back")
	}
	half.Release()
	bounded := &Bodies{Limit: 100}
	if _, err := bounded.Body(51); err != nil || !bounded.Scarce() {
		t.Errorf("half of the limit: %v, scarce %t", err, bounded.Scarce())
	}
}

func TestPressed(t *testing.T) {
	answers := false
	m := &Bodies{Limit: 100, Answers: func() bool { return answers }}
	if m.Pressed() {
		t.Error("with all memory")
	}
	answers = true
	if !m.Pressed() || m.Scarce() {
		t.Errorf("answers are held: pressed %t, bodies scarce %t; want true, false", m.Pressed(), m.Scarce())
	}
	answers = false
	b, err := m.Body(51)
	if err != nil || !m.Pressed() {
		t.Errorf("half of the limit: %v, pressed %t", err, m.Pressed())
	}
	b.Release()
	if (&Bodies{}).Pressed() {
		t.Error("without bounds")
	}
}

// What is free may lie in pieces: who gets none counts, unless there is not that much at all.
func TestPressedByRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Bodies{Arena: &fakeArena{size: 40 << 10}, ArenaSize: 1 << 20, Limit: 4 << 20}
		for _, n := range []int64{2 << 20, 5 << 20} {
			if _, err := m.Body(n); err == nil || m.Pressed() {
				t.Errorf("%d bytes of 1 MiB: %v, pressed %t", n, err, m.Pressed())
			}
		}
		if _, err := m.Body(48 << 10); err == nil || !m.Pressed() {
			t.Errorf("48 KiB of a piece of 40: %v, pressed %t", err, m.Pressed())
		}
	})
}
