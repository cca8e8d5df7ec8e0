package queue

import "container/heap"

// shares are the callers who wait in one level: a full line is divided between them by
// their weights. Who takes more than his part gives way to who takes less; while there is
// room nobody is held to anything, and the order in which entries leave is not touched.
type shares struct {
	nobody  holder // of entries without a caller
	named   map[string]*holder
	most    holderHeap // who wait, the one that takes most of his part first
	weights int        // of all who wait
	free    []*holder
}

// holder is one caller with his waiting entries.
type holder struct {
	name   string
	weight int
	n      int
	last   *Entry // the one that came last
	at     int    // index in most
}

// keepHolders is how many are kept for callers to come.
const keepHolders = 64

// of finds a caller; nil: nothing of him waits.
func (s *shares) of(name string) *holder {
	if name == "" {
		return &s.nobody
	}
	return s.named[name]
}

func (s *shares) add(e *Entry) {
	h := s.of(e.Caller)
	if h == nil {
		h = s.open(e.Caller)
	}
	if h.n++; h.n == 1 {
		h.weight = max(e.Weight, 1)
		s.weights += h.weight
		heap.Push(&s.most, h)
	} else if len(s.most) > 1 {
		heap.Fix(&s.most, h.at)
	}
	e.holder, e.older, e.newer = h, h.last, nil
	if h.last != nil {
		h.last.newer = e
	}
	h.last = e
}

// open makes a holder of nothing yet.
func (s *shares) open(name string) *holder {
	var h *holder
	if k := len(s.free); k > 0 {
		h, s.free = s.free[k-1], s.free[:k-1]
	} else {
		h = &holder{}
	}
	h.name = name
	if s.named == nil {
		s.named = map[string]*holder{}
	}
	s.named[name] = h
	return h
}

func (s *shares) remove(e *Entry) {
	h := e.holder
	if e.older != nil {
		e.older.newer = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		h.last = e.older
	}
	e.holder, e.older, e.newer = nil, nil, nil
	if h.n--; h.n > 0 {
		if len(s.most) > 1 {
			heap.Fix(&s.most, h.at)
		}
		return
	}
	s.weights -= h.weight
	heap.Remove(&s.most, h.at)
	if h != &s.nobody {
		delete(s.named, h.name)
		if len(s.free) < keepHolders {
			s.free = append(s.free, h)
		}
	}
}

// yields is the entry that gives way to e in a line of so many; nil: e would take more
// than its caller's part. Whoever else takes most then takes more than his: the line is
// full, and e's caller has less than his part of it.
func (s *shares) yields(e *Entry, limit int) *Entry {
	if len(s.most) == 0 {
		return nil
	}
	n, weight, all := 0, max(e.Weight, 1), s.weights
	if h := s.of(e.Caller); h != nil && h.n > 0 {
		n, weight = h.n, h.weight
	} else {
		all += weight
	}
	if (n+1)*all > limit*weight || s.most[0].name == e.Caller {
		return nil
	}
	return s.most[0].last
}

// holderHeap has the one in front that takes most of his part; of equals, by name, so
// that decisions can be repeated.
type holderHeap []*holder

func (h holderHeap) Len() int { return len(h) }
func (h holderHeap) Less(i, j int) bool {
	a, b := h[i].n*h[j].weight, h[j].n*h[i].weight
	return a > b || a == b && h[i].name < h[j].name
}

func (h holderHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *holderHeap) Push(x any) {
	one := x.(*holder)
	one.at = len(*h)
	*h = append(*h, one)
}

func (h *holderHeap) Pop() any {
	old := *h
	one := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return one
}

// Yields is the waiting entry that gives way to e, whose line is full; nil: none does. It
// stays in line until it is removed.
func (c *Core) Yields(e *Entry) *Entry {
	i, ok := c.line.find(e.Level)
	if !ok {
		return nil
	}
	return c.line.levels[i].shares.yields(e, c.line.cfg.of(e.Level).Limit)
}
