package region

import (
	"errors"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
	"github.com/sluice-serve/sluice/workers/wire"
)

// block is device memory that counts how often it is given back.
type block struct {
	at     cuda.Pointer
	closed int
	err    error
}

func (b *block) Read([]byte, int64) error  { return nil }
func (b *block) Write(int64, []byte) error { return errors.New("written") }
func (b *block) Pointer() cuda.Pointer     { return b.at }
func (b *block) Close() error              { b.closed++; return b.err }

// A resident tensor has a slot above those of clients, is read and not written, and goes when it
// was dropped and nobody uses it.
func TestResident(t *testing.T) {
	table := NewTable()
	a, b := &block{at: 256}, &block{at: 512}
	slot, err := table.AddResident(a, 64)
	if err != nil || slot != wire.FirstResident {
		t.Fatalf("slot %d, %v", slot, err)
	}
	if other, err := table.AddResident(b, 64); err != nil || other != slot+1 {
		t.Errorf("slot %d, %v", other, err)
	}
	r := table.Acquire(slot)
	if at, ok := r.Pointer(8); !ok || at != 264 || r.Writable() || !r.Frozen() || r.Check(0, 65) == nil || r.Err() != nil {
		t.Errorf("it lies at %d, %v", at, ok)
	}
	if err := r.Write(0, []byte("x")); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("written: %v", err)
	}
	if err := table.Close(t.Context(), slot); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("closed as a client's: %v", err)
	}
	table.Drop(slot)
	if a.closed != 0 || table.Acquire(slot) != nil {
		t.Error("it is gone while it is used, or can still be named")
	}
	r.Release()
	table.Drop(slot)
	if a.closed != 1 {
		t.Errorf("given back %d times", a.closed)
	}
	if next, err := table.AddResident(a, 64); err != nil || next != slot+2 { // not the slot that was free first
		t.Errorf("slot %d, %v", next, err)
	}
	table.resident = wire.LastResident
	if next, err := table.AddResident(&block{}, 64); err != nil || next != slot {
		t.Errorf("behind the last slot comes %d, %v", next, err)
	}
	table.CloseAll()
	if a.closed != 2 || b.closed != 1 {
		t.Errorf("given back %d and %d times", a.closed, b.closed)
	}
	late := &block{}
	if _, err := table.AddResident(late, 64); infer.CodeOf(err) != infer.Unavailable || late.closed != 1 {
		t.Errorf("after the end: %v, given back %d times", err, late.closed)
	}
}

// Regions of a device overlap by their addresses: two may be of one allocation.
func TestDeviceOverlaps(t *testing.T) {
	a := openDevice(Config{Slot: 1, Size: 64}, &block{at: 256})
	b := openDevice(Config{Slot: 2, Size: 64}, &block{at: 288})
	for _, c := range []struct {
		off, n, at, m int64
		want          bool
	}{{0, 32, 0, 8, false}, {0, 33, 0, 8, true}, {40, 8, 0, 8, false}, {40, 8, 15, 1, true}, {0, 0, 0, 8, false}} {
		if got := a.Overlaps(c.off, c.n, b, c.at, c.m); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	file := &Region{}
	if a.Overlaps(0, 64, file, 0, 64) || file.Overlaps(0, 64, a, 0, 64) {
		t.Error("a device and a file have bytes in common")
	}
}
