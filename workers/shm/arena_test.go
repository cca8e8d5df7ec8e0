package shm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"golang.org/x/sys/unix"
)

func openTestArena(t testing.TB, size int64) *Arena {
	t.Helper()
	a, err := NewArena("test", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// model is the simplest allocator's books: what is in use, and nothing else.
type model struct {
	t     *testing.T
	a     *Arena
	rng   *rand.Rand
	owner []uint16 // by unit
	live  []live
	next  uint16
}

type live struct {
	b  []byte
	id uint16
}

func (m *model) alloc(n int64) {
	b, err := m.a.Alloc(n)
	if err != nil {
		if infer.ReasonOf(err) != infer.ReasonMemory || infer.CodeOf(err) != infer.Unavailable {
			m.t.Fatalf("Alloc(%d): %v", n, err)
		}
		return
	}
	off, ok := m.a.Offset(b)
	if !ok || off%unitSize != 0 || int64(len(b)) != n {
		m.t.Fatalf("Alloc(%d) is %d bytes at %d, %v", n, len(b), off, ok)
	}
	m.next++
	for u := off / unitSize; u < (off+max(n, 1)+unitSize-1)/unitSize; u++ {
		if m.owner[u] != 0 {
			m.t.Fatalf("Alloc(%d) at %d overlaps a block in use", n, off)
		}
		m.owner[u] = m.next
	}
	m.live = append(m.live, live{b, m.next})
}

func (m *model) free(i int) {
	l := m.live[i]
	off, _ := m.a.Offset(l.b)
	for u := off / unitSize; u < int64(len(m.owner)) && m.owner[u] == l.id; u++ {
		m.owner[u] = 0
	}
	m.a.Free(l.b)
	m.live[i] = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
}

func TestArenaAgainstModel(t *testing.T) {
	const size = 3<<20 + 4096 // no power of two
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			a := openTestArena(t, size)
			m := &model{t: t, a: a, rng: rand.New(rand.NewPCG(seed, 1)), owner: make([]uint16, size/unitSize)}
			for range 20000 {
				switch {
				case len(m.live) > 0 && m.rng.IntN(100) < 48:
					m.free(m.rng.IntN(len(m.live)))
				case m.rng.IntN(4) == 0:
					m.alloc(m.rng.Int64N(300 << 10))
				default:
					m.alloc(m.rng.Int64N(3000))
				}
			}
			for len(m.live) > 0 {
				m.free(len(m.live) - 1)
			}
			if n := a.InUse(); n != 0 {
				t.Errorf("%d bytes are in use at the end", n)
			}
			b, err := a.Alloc(2 << 20) // all has merged again
			if err != nil {
				t.Fatal(err)
			}
			a.Free(b)
		})
	}
}

func TestArenaUsesAllOfItself(t *testing.T) {
	a := openTestArena(t, 1<<20)
	var blocks [][]byte
	for {
		b, err := a.Alloc(4096)
		if err != nil {
			break
		}
		blocks = append(blocks, b)
	}
	if len(blocks) != 256 || a.InUse() != 1<<20 {
		t.Errorf("%d blocks, %d bytes in use, want 256 and all", len(blocks), a.InUse())
	}
	for _, b := range blocks {
		a.Free(b)
	}
	if _, err := a.Alloc(1 << 20); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(1); infer.ReasonOf(err) != infer.ReasonMemory {
		t.Errorf("a full arena answers %v", err)
	}
}

func TestArenaRefusesTooMuch(t *testing.T) {
	a := openTestArena(t, 1<<20)
	for _, n := range []int64{1<<20 + 1, 1 << 40, math.MaxInt64} {
		if _, err := a.Alloc(n); infer.ReasonOf(err) != infer.ReasonMemory {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
	if _, err := NewArena("x", 0); err == nil {
		t.Error("an arena without memory was made")
	}
	if _, err := NewArena("x", math.MaxInt64); err == nil {
		t.Error("an arena of all bytes was made")
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestArenaPanicsOnOurBugs(t *testing.T) {
	a := openTestArena(t, 1<<20)
	b, err := a.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	mustPanic(t, "free of the middle", func() { a.Free(b[64:]) })
	a.Free(b)
	mustPanic(t, "a double free", func() { a.Free(b) })
	mustPanic(t, "a foreign free", func() { a.Free(make([]byte, 10)) })
	mustPanic(t, "a negative size", func() { _, _ = a.Alloc(-1) })
	if _, err := a.Alloc(1); err != nil { // no lock was left behind
		t.Fatal(err)
	}
}

func TestArenaView(t *testing.T) {
	a := openTestArena(t, 8192)
	for _, c := range []struct {
		off, n int64
		ok     bool
	}{{0, 0, true}, {0, 8192, true}, {8192, 0, true}, {8191, 1, true}, {8191, 2, false}, {8193, 0, false}, {-1, 1, false},
		{0, -1, false}, {math.MaxInt64, math.MaxInt64, false}, {1, math.MaxInt64, false}, {math.MinInt64, 5, false}} {
		b, err := a.View(c.off, c.n)
		if (err == nil) != c.ok || c.ok && int64(len(b)) != c.n {
			t.Errorf("View(%d, %d) is %d bytes, %v", c.off, c.n, len(b), err)
		}
	}
}

func TestArenaHolds(t *testing.T) {
	a, other := openTestArena(t, 8192), openTestArena(t, 8192)
	b, err := a.Alloc(200)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Holds(b) || !a.Holds(b[100:]) || !a.Holds(b[:0]) || other.Holds(b) || a.Holds(nil) || a.Holds(make([]byte, 1)) {
		t.Error("Holds is wrong")
	}
	if off, ok := a.Offset(b[100:]); !ok || off != 100 {
		t.Errorf("Offset is %d, %v", off, ok)
	}
	if uintptr(unsafe.Pointer(&b[0]))%unitSize != 0 {
		t.Error("not aligned")
	}
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What the gateway allocates is read, and can't be written or resized, by the peer.
func TestArenaIsReadOnlyForThePeer(t *testing.T) {
	a := openTestArena(t, 1<<20)
	b, err := a.Alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "hello")
	peer, err := OpenArena(dup(t, a.FD()), false)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	off, _ := a.Offset(b)
	if got, err := peer.View(off, 5); err != nil || string(got) != "hello" {
		t.Errorf("the peer sees %q, %v", got, err)
	}
	if _, err := OpenArena(a.FD(), true); err == nil {
		t.Error("the peer can map it writable")
	}
	if err := unix.Ftruncate(peer.FD(), 0); err == nil {
		t.Error("the peer can shrink it")
	}
	if _, err := unix.Pwrite(peer.FD(), []byte("x"), 0); err == nil {
		t.Error("the peer can write it")
	}
	// Which is why freed pages are not given back.
	if err := unix.Fallocate(a.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err == nil {
		t.Error("holes can be punched")
	}
	mustPanic(t, "Alloc by the reader", func() { _, _ = peer.Alloc(1) })
}

func TestPeerArena(t *testing.T) {
	a, err := NewPeerArena("test", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	peer, err := OpenArena(dup(t, a.FD()), true)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	b, err := peer.Alloc(5)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "hello")
	off, _ := peer.Offset(b)
	if got, err := a.View(off, 5); err != nil || string(got) != "hello" {
		t.Errorf("the gateway sees %q, %v", got, err)
	}
	if err := unix.Ftruncate(peer.FD(), 0); err == nil {
		t.Error("the worker can shrink it")
	}
}

func TestOpenArenaRefusesUnsealed(t *testing.T) {
	fd, err := newMemfd("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := OpenArena(fd, false); err == nil {
		t.Error("an arena that can shrink was mapped")
	}
	if _, err := OpenLane(fd, -1); err == nil {
		t.Error("a lane that can shrink was mapped")
	}
}

func TestHeap(t *testing.T) {
	h, err := NewHeap(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Alloc(1000)
	if err != nil || h.FD() != -1 || !h.Holds(b) || h.InUse() < 1000 {
		t.Errorf("heap: %v, fd %d, %d bytes in use", err, h.FD(), h.InUse())
	}
	h.Free(b)
	if err := errors.Join(h.Close(), h.Close()); err != nil {
		t.Error(err)
	}
}

func TestArenaConcurrent(t *testing.T) {
	a := openTestArena(t, 4<<20)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 3000 {
				b, err := a.Alloc(1 + rng.Int64N(100<<10))
				if err != nil {
					t.Error(err)
					return
				}
				b[0], b[len(b)-1] = byte(g), byte(g)
				if b[0] != byte(g) {
					t.Error("shared by two")
				}
				a.Free(b)
			}
		})
	}
	wg.Wait()
	if n := a.InUse(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}

// An arena of any size is given away whole, and again once it was cut up.
func TestArenaOfAnySizeIsOneBlock(t *testing.T) {
	for _, size := range []int64{4096, 12 << 10, 100 << 10, 1 << 20, 1000 << 10, 3<<20 + 4096} {
		a := openTestArena(t, size)
		for _, n := range []int64{size, size - 64, size/2 + 1} {
			b, err := a.Alloc(n)
			if err != nil {
				t.Fatalf("%d of %d bytes: %v", n, size, err)
			}
			if n == size {
				if _, err := a.Alloc(1); err == nil {
					t.Errorf("more than %d bytes", size)
				}
			}
			a.Free(b)
			small := make([][]byte, 0, 20)
			for range 20 {
				if b, err := a.Alloc(100); err == nil {
					small = append(small, b)
				}
			}
			if _, err := a.Alloc(size); err == nil {
				t.Errorf("all of %d bytes, while some are in use", size)
			}
			for _, b := range small {
				a.Free(b)
			}
		}
		if a.InUse() != 0 {
			t.Errorf("%d bytes in use of %d", a.InUse(), size)
		}
	}
}

// What is kept for small things is theirs alone, and is given back like all else.
func TestArenaKeepsRoomForSmallThings(t *testing.T) {
	ours, err := NewPeerArena("test", 100<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	a, err := OpenArena(dup(t, ours.FD()), true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if ours.Size() != 100<<10 || a.Size() != 100<<10 {
		t.Fatalf("%d and %d bytes, want %d", ours.Size(), a.Size(), 100<<10)
	}
	for range 2 {
		all, err := a.Alloc(a.Size())
		if err != nil {
			t.Fatal(err)
		}
		var small [][]byte
		for {
			b, err := a.AllocSmall(1000)
			if err != nil {
				break
			}
			off, _ := a.Offset(b)
			if there, err := ours.View(off, 1000); err != nil || off < a.Size() {
				t.Fatalf("at %d: %v", off, err)
			} else if b[999] = 7; there[999] != 7 {
				t.Fatal("the peer sees something else")
			}
			small = append(small, b)
		}
		if len(small) != reserved/1024 {
			t.Errorf("%d small things", len(small))
		}
		a.Free(all)
		if b, err := a.AllocSmall(1000); err != nil {
			t.Errorf("beside it: %v", err)
		} else {
			a.Free(b)
		}
		for _, b := range small {
			a.Free(b)
		}
	}
}

func FuzzBuddy(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x80, 200, 0x81})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const units = 5000
		b := newBuddy(units)
		owner := make([]bool, units)
		var starts []uint32
		for _, op := range ops[:min(len(ops), 2000)] {
			if op&0x80 != 0 && len(starts) > 0 {
				i := int(op&0x7f) % len(starts)
				for u := range b.used[starts[i]] {
					owner[starts[i]+u] = false
				}
				b.release(starts[i])
				starts = append(starts[:i], starts[i+1:]...)
				continue
			}
			n := uint32(op&0x7f)*40 + 1 // some are more than the largest power of two
			start, ok := b.alloc(n)
			if !ok {
				continue
			}
			if b.used[start] < n {
				t.Fatalf("%d units for %d", b.used[start], n)
			}
			for u := range b.used[start] {
				if owner[start+u] {
					t.Fatalf("unit %d given twice", start+u)
				}
				owner[start+u] = true
			}
			starts = append(starts, start)
		}
		for _, s := range starts {
			b.release(s)
		}
		b.flush()
		if b.inUse != 0 || !b.free[len(b.free)-1].has(0) {
			t.Error("the blocks did not merge again")
		}
	})
}

func BenchmarkArena(b *testing.B) {
	for _, n := range []int64{256, 2048, 32 << 10, 600 << 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			a := openTestArena(b, 256<<20)
			for b.Loop() {
				m, err := a.Alloc(n)
				if err != nil {
					b.Fatal(err)
				}
				a.Free(m)
			}
		})
	}
}
