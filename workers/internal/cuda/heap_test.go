package cuda

import (
	"errors"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// fakeDevice has so many bytes, and counts them.
type fakeDevice struct {
	room int64
	at   Pointer
	out  map[Pointer]int64
	err  error // of Free
}

func (d *fakeDevice) Alloc(n int64) (Pointer, error) {
	if n > d.room {
		return 0, (&failure{outOfMemory, "cuMemAlloc: out of memory (2)"}).taking(n)
	}
	d.room -= n
	d.at += Pointer(n)
	d.out[d.at] = n
	return d.at, nil
}

func (d *fakeDevice) Free(p Pointer) error {
	d.room += d.out[p]
	delete(d.out, p)
	return d.err
}

func TestHeap(t *testing.T) {
	d := &fakeDevice{room: 1 << 20, out: map[Pointer]int64{}}
	h := NewHeap(d, 1<<16)
	take := func(n int64) Block {
		t.Helper()
		b, err := h.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	give := func(b Block) {
		t.Helper()
		if err := h.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	a := take(1000)
	if d.room != 1<<20-1024 || h.InUse() != 1024 {
		t.Errorf("%d bytes left, %d in use", d.room, h.InUse())
	}
	give(a)
	if b := take(513); b != a { // the kept one
		t.Errorf("got %+v, want %+v", b, a)
	}
	give(take(0))
	if h.InUse() != 1024 || len(d.out) != 2 {
		t.Errorf("%d bytes in use, %d blocks", h.InUse(), len(d.out))
	}
	// What is kept gives way to what is wanted.
	give(take(1 << 15))
	b := take(1 << 14)
	c := take(1<<15 - 1)
	if h.InUse() != 1024+1<<14+1<<15 {
		t.Errorf("%d bytes in use", h.InUse())
	}
	give(b)
	give(take(9000)) // of 16384 bytes
	if len(d.out) != 3 && len(d.out) != 4 {
		t.Errorf("%d blocks", len(d.out))
	}
	give(c)
	give(a)
	if err := h.Trim(); err != nil || h.InUse() != 0 || d.room != 1<<20 || len(d.out) != 0 {
		t.Errorf("%d bytes in use, %d left, %v", h.InUse(), d.room, err)
	}
	late := take(1)
	d.err = errors.New("no")
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Free(late); !errors.Is(err, d.err) || d.room != 1<<20 {
		t.Errorf("%v, %d left", err, d.room)
	}
}

func TestHeapRefuses(t *testing.T) {
	d := &fakeDevice{room: 1 << 14, out: map[Pointer]int64{}}
	h := NewHeap(d, 1<<50)
	for _, n := range []int64{-1, 1<<50 + 1, 1 << 50, 1 << 47, 1<<63 - 1, 1<<14 + 1} {
		if _, err := h.Alloc(n); infer.ReasonOf(err) != infer.ReasonMemory || infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// A device that is full of what is kept is not full.
	a, err := h.Alloc(1 << 13)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Free(a); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Alloc(1 << 14); err != nil {
		t.Error(err)
	}
	if _, err := h.Alloc(1); infer.ReasonOf(err) != infer.ReasonMemory {
		t.Errorf("a full device: %v", err)
	}
}
