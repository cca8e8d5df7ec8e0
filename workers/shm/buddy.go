package shm

import (
	"fmt"
	"math/bits"
)

const (
	unitShift = 6 // blocks are multiples of 64 bytes, aligned to that
	unitSize  = 1 << unitShift

	// From this order on (64 KiB) a block is cut to eighths of its power of two.
	trimOrder = 10

	// Freed blocks of up to cacheOrders-1 (64 KiB) are kept as they are, a few of
	// each size, so that the usual alloc and free neither split nor merge.
	cacheOrders = 11
	cacheBlocks = 32
)

// buddy is a buddy allocator over units of 64 bytes, with its books in private memory.
// Of the blocks that fit it takes the one with the lowest address, so the pages that
// were ever touched stay near the peak of what was in use. Not safe for concurrent use.
type buddy struct {
	free     []bitset // by order: block i of 1<<order units is free
	nonempty uint64   // orders whose bitset has a member
	used     []uint32 // by unit: length in units of the block that starts there, 0 for none
	cache    [cacheOrders]struct {
		n     int
		start [cacheBlocks]uint32
	}
	inUse int64 // units
}

func newBuddy(units int64) *buddy {
	b := &buddy{used: make([]uint32, units)}
	for o := 0; int64(1)<<o <= units; o++ {
		b.free = append(b.free, newBitset(int(units>>o)))
	}
	b.giveBack(0, uint32(units))
	return b
}

// blockUnits is how many units a block for n units takes, and its order.
func blockUnits(n uint32) (units uint32, order int) {
	order = bits.Len32(n - 1)
	units = 1 << order
	if order >= trimOrder {
		g := uint32(1) << (order - 3)
		units = (n + g - 1) &^ (g - 1)
	}
	return units, order
}

// alloc takes a block for n > 0 units. It returns its first unit.
func (b *buddy) alloc(n uint32) (uint32, bool) {
	if int64(n) > int64(len(b.used)) {
		return 0, false
	}
	units, order := blockUnits(n)
	if order < cacheOrders && units == 1<<order {
		if c := &b.cache[order]; c.n > 0 {
			c.n--
			return b.take(c.start[c.n], units), true
		}
	}
	if order >= len(b.free) {
		if start, ok := b.allocFirst(n); ok {
			return start, true
		}
		return b.allocLast(n)
	}
	k := order
	for try := 0; ; try++ {
		if m := b.nonempty >> order; m != 0 {
			k = order + bits.TrailingZeros64(m)
			break
		}
		if try > 0 && order >= cacheOrders {
			return b.allocLast(n)
		}
		if try > 0 {
			return 0, false
		}
		b.flush()
	}
	i := b.free[k].first()
	b.remove(k, i)
	for ; k > order; k-- {
		i *= 2
		b.add(k-1, i+1)
	}
	start := uint32(i) << order
	if tail := start + units; units < 1<<order {
		b.scatter(tail, start+1<<order-tail)
	}
	return b.take(start, units), true
}

// allocFirst takes a block at the very start that is larger than any power of two in an
// arena whose size is none: of as many free blocks as it takes.
func (b *buddy) allocFirst(n uint32) (uint32, bool) {
	b.flush()
	end := uint32(0)
	for end < n {
		o, ok := b.freeAt(end)
		if !ok {
			return 0, false
		}
		end += 1 << o
	}
	for at := uint32(0); at < end; {
		o, _ := b.freeAt(at)
		b.remove(o, int(at>>o))
		at += 1 << o
	}
	b.giveBack(n, end-n)
	return b.take(0, n), true
}

// allocLast takes a block at the very end, of as many free blocks as it takes. Little that is in use, and stays, leaves
// no power of two for more than half of the arena, and lies at its start.
func (b *buddy) allocLast(n uint32) (uint32, bool) {
	b.flush()
	end := uint32(len(b.used))
	start := end
	for end-start < n {
		o, ok := b.freeUntil(start)
		if !ok {
			return 0, false
		}
		start -= 1 << o
	}
	for at := start; at < end; {
		o, _ := b.freeAt(at)
		b.remove(o, int(at>>o))
		at += 1 << o
	}
	b.giveBack(start, end-n-start)
	return b.take(end-n, n), true
}

// freeUntil is the order of the free block that ends before a unit.
func (b *buddy) freeUntil(end uint32) (order int, ok bool) {
	for o := range b.free {
		if end >= 1<<o && end&(1<<o-1) == 0 && b.free[o].has(int(end>>o)-1) {
			return o, true
		}
	}
	return 0, false
}

// freeAt is the order of the free block that starts at a unit.
func (b *buddy) freeAt(start uint32) (order int, ok bool) {
	for o := range b.free {
		if start&(1<<o-1) == 0 && b.free[o].has(int(start>>o)) {
			return o, true
		}
	}
	return 0, false
}

func (b *buddy) take(start, units uint32) uint32 {
	b.used[start] = units
	b.inUse += int64(units)
	return start
}

// release frees the block that starts at unit start. It panics where none does.
func (b *buddy) release(start uint32) {
	units := b.used[start]
	if units == 0 {
		panic(fmt.Sprintf("shm: free of offset %d, where no block in use starts", int64(start)<<unitShift))
	}
	b.used[start] = 0
	b.inUse -= int64(units)
	if order := bits.TrailingZeros32(units); order < cacheOrders && units == 1<<order {
		if c := &b.cache[order]; c.n < cacheBlocks {
			c.start[c.n] = start
			c.n++
			return
		}
	}
	b.giveBack(start, units)
}

// flush merges what the caches hold back into the free blocks.
func (b *buddy) flush() {
	for o := range b.cache {
		c := &b.cache[o]
		for ; c.n > 0; c.n-- {
			b.giveBack(c.start[c.n-1], 1<<o)
		}
	}
}

// giveBack frees a range and merges its blocks with their buddies.
func (b *buddy) giveBack(start, units uint32) {
	for units > 0 {
		o := largestBlock(start, units)
		b.merge(start, o)
		start += 1 << o
		units -= 1 << o
	}
}

// scatter frees a range none of whose blocks can have a free buddy.
func (b *buddy) scatter(start, units uint32) {
	for units > 0 {
		o := largestBlock(start, units)
		b.add(o, int(start>>o))
		start += 1 << o
		units -= 1 << o
	}
}

// largestBlock is the order of the largest aligned block at start within units.
func largestBlock(start, units uint32) int {
	return min(bits.TrailingZeros32(start), bits.Len32(units)-1)
}

func (b *buddy) merge(start uint32, order int) {
	i := int(start >> order)
	for order+1 < len(b.free) && b.free[order].has(i^1) {
		b.remove(order, i^1)
		i >>= 1
		order++
	}
	b.add(order, i)
}

func (b *buddy) add(order, i int) {
	b.free[order].set(i)
	b.nonempty |= 1 << order
}

func (b *buddy) remove(order, i int) {
	if b.free[order].clear(i) {
		b.nonempty &^= 1 << order
	}
}

// bitset is a set of small integers with the smallest member found in a few steps:
// level k+1 has a bit for each word of level k that is not 0.
type bitset struct {
	levels [][]uint64
}

func newBitset(n int) bitset {
	var s bitset
	for {
		words := (n + 63) / 64
		s.levels = append(s.levels, make([]uint64, max(words, 1)))
		if words <= 1 {
			return s
		}
		n = words
	}
}

func (s bitset) has(i int) bool {
	w := i >> 6
	return w < len(s.levels[0]) && s.levels[0][w]&(1<<(i&63)) != 0
}

func (s bitset) set(i int) {
	for _, l := range s.levels {
		old := l[i>>6]
		l[i>>6] = old | 1<<(i&63)
		if old != 0 {
			return
		}
		i >>= 6
	}
}

// clear says whether the set is empty now.
func (s bitset) clear(i int) bool {
	for _, l := range s.levels {
		l[i>>6] &^= 1 << (i & 63)
		if l[i>>6] != 0 {
			return false
		}
		i >>= 6
	}
	return true
}

// first is the smallest member of a set that is not empty.
func (s bitset) first() int {
	i := 0
	for k := len(s.levels) - 1; k >= 0; k-- {
		i = i<<6 | bits.TrailingZeros64(s.levels[k][i])
	}
	return i
}
