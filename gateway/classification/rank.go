package classification

import "context"

// entry is a value while it is ranked.
type entry struct {
	key   uint64
	index uint32
}

// below says that e ranks below another: it is less, or as much and comes later.
func (e entry) below(other entry) bool {
	return e.key < other.key || e.key == other.key && e.index > other.index
}

// block is how many keys are made at a time. The context is looked at before each block, and once in as many steps
// of sorting.
const block = 1 << 10

// rank fills best with the len(best) largest of n values, largest first, equal ones in the order of their indices:
// best is a heap of the best so far, whose root is the worst of them, and is then sorted. keys fills a slice with
// the keys from an index on. rank gives up when ctx ends.
func rank(ctx context.Context, best []entry, n int64, keys func(to []uint64, from int64)) error {
	var made [block]uint64
	k := int64(len(best))
	for from := int64(0); from < n; from += block {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		to := made[:min(block, n-from)]
		keys(to, from)
		i := int64(0)
		for ; i < int64(len(to)) && from+i < k; i++ {
			if best[from+i] = (entry{to[i], uint32(from + i)}); from+i == k-1 {
				heapify(best)
			}
		}
		for ; i < int64(len(to)); i++ {
			if to[i] > best[0].key { // of equal ones the first stays
				siftDown(best, 0, entry{to[i], uint32(from + i)})
			}
		}
	}
	return heapSort(ctx, best)
}

// heapify orders entries as a heap.
func heapify(h []entry) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		siftDown(h, i, h[i])
	}
}

// heapSort sorts a heap, best first.
func heapSort(ctx context.Context, h []entry) error {
	for end := len(h) - 1; end > 0; end-- {
		if end%block == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		last := h[end]
		h[end] = h[0]
		siftDown(h[:end], 0, last)
	}
	return nil
}

// siftDown puts e where it belongs in the heap below i, whose own entry is gone: the hole moves down to a leaf along
// the worse children, and e moves up from there, since what comes from the end of a heap mostly belongs near it.
func siftDown(h []entry, i int, e entry) {
	top := i
	for child := 2*i + 1; child < len(h); child = 2*i + 1 {
		if right := child + 1; right < len(h) && h[right].below(h[child]) {
			child = right
		}
		h[i] = h[child]
		i = child
	}
	for i > top {
		parent := (i - 1) / 2
		if !e.below(h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
}
