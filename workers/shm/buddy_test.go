package shm

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Sizes at and beside powers of two and their eighths, in arenas of all kinds of sizes: no unit is
// given twice, what is in use is what was given, and all of it comes back as one block.
func TestBuddyAtItsLimits(t *testing.T) {
	for _, units := range []int64{1, 2, 3, 63, 64, 65, 1023, 1024, 1025, 1536, 4095, 4097, 9000} {
		var sizes []uint32
		for n := int64(1); n <= 2*units; n *= 2 {
			for eighth := int64(8); eighth < 16; eighth++ {
				for _, d := range []int64{-1, 0, 1} {
					if size := n*eighth/8 + d; size > 0 && size <= units {
						sizes = append(sizes, uint32(size))
					}
				}
			}
		}
		sizes = append(sizes, uint32(units), uint32(max(units-1, 1)))
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%d units, seed %d", units, seed), func(t *testing.T) {
				tryBuddy(t, newBuddy(units), sizes, rand.New(rand.NewPCG(seed, uint64(units))))
			})
		}
	}
}

func tryBuddy(t *testing.T, b *buddy, sizes []uint32, rng *rand.Rand) {
	t.Helper()
	units := uint32(len(b.used))
	owned, inUse := make([]bool, units), int64(0)
	var starts []uint32
	free := func(i int) {
		n := b.used[starts[i]]
		clear(owned[starts[i]:][:n])
		inUse -= int64(n)
		b.release(starts[i])
		starts[i] = starts[len(starts)-1]
		starts = starts[:len(starts)-1]
	}
	for range 3000 {
		if len(starts) > 0 && rng.IntN(100) < 47 {
			free(rng.IntN(len(starts)))
			continue
		}
		n := sizes[rng.IntN(len(sizes))]
		start, ok := b.alloc(n)
		switch {
		case !ok && inUse == 0:
			t.Fatalf("no room for %d of %d units, and none is in use", n, units)
		case !ok:
			continue
		case b.used[start] < n || start+b.used[start] > units:
			t.Fatalf("%d units at %d for %d of %d", b.used[start], start, n, units)
		}
		for u := start; u < start+b.used[start]; u++ {
			if owned[u] {
				t.Fatalf("unit %d is given twice", u)
			}
			owned[u] = true
		}
		inUse += int64(b.used[start])
		if b.inUse != inUse {
			t.Fatalf("%d units are in use, the books say %d", inUse, b.inUse)
		}
		starts = append(starts, start)
	}
	for len(starts) > 0 {
		free(len(starts) - 1)
	}
	if start, ok := b.alloc(units); !ok || start != 0 || b.inUse != int64(units) {
		t.Errorf("all came back, and yet %d of %d units are given at %d: %v", b.inUse, units, start, ok)
	}
}

// TestSmallBlocksLeaveTheRest: what a worker keeps at the start of an arena takes no more from a large block than its
// own size, also where that is more than half of the arena; afterwards the arena is whole again.
func TestSmallBlocksLeaveTheRest(t *testing.T) {
	for _, units := range []int64{1 << 15, 1 << 12, 1 << 20} {
		b := newBuddy(units)
		small, _ := b.alloc(32)
		for range 3 {
			n := uint32(units) - 32
			large, ok := b.alloc(n)
			if !ok || large < 32 || int64(large)+int64(n) > units {
				t.Fatalf("%d units of %d: at %d, %t", n, units, large, ok)
			}
			if _, ok := b.alloc(1); ok {
				t.Error("there is room behind all of it")
			}
			b.release(large)
			for _, part := range []int64{units/2 + 1, units * 3 / 4} {
				at, ok := b.alloc(uint32(part))
				if !ok {
					t.Fatalf("no room for %d units of %d", part, units)
				}
				b.release(at)
			}
		}
		b.release(small)
		if at, ok := b.alloc(uint32(units)); !ok || at != 0 {
			t.Errorf("the whole of %d units: at %d, %t", units, at, ok)
		}
	}
}
