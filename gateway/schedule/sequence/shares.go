package sequence

import (
	"container/heap"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// shares are the slots of all instances as they are divided between callers: of those who
// wait for one, who has fewest by its weight gets the next free slot. While none waits,
// nobody is held to anything.
type shares struct {
	nobody   sharer // of callers without a name
	named    map[owner]*sharer
	next     sharerHeap // who wait, the one that gets the next slot first
	free     []*sharer
	arrivals uint64
}

// owner is whose share a sequence takes: a tenant's, or that of a caller without one. The
// zero value is everybody else.
type owner struct{ tenant, caller string }

// sharer is one owner of slots, or of sequences that wait for them.
type sharer struct {
	owner       owner
	weight      int // at least 1
	slots       int // that its sequences have
	living      int // sequences, in slots and in the backlog
	requests    int // of them, that wait
	first, last *sequence
	at          int // index in shares.next; -1: nothing of it waits
}

// keepSharers bounds the free list of sharers.
const keepSharers = 64

// ownerOf says whose share a request's sequence takes.
func (r *rules) ownerOf(req *infer.Request) owner {
	if req.Tenant != "" && r.scope != infer.SequencesByCaller {
		return owner{tenant: req.Tenant}
	}
	return owner{caller: req.Caller}
}

// join gives a new sequence its sharer.
func (h *shares) join(s *sequence, o owner, e *queue.Entry) {
	h.arrivals++
	s.number = h.arrivals
	s.sharer = h.open(o)
	s.sharer.living++
	s.sharer.weight = max(e.Weight, 1)
	h.fix(s.sharer)
}

func (h *shares) open(o owner) *sharer {
	if o == (owner{}) {
		if h.nobody.living == 0 {
			h.nobody.at = -1
		}
		return &h.nobody
	}
	p := h.named[o]
	if p != nil {
		return p
	}
	if k := len(h.free); k > 0 {
		p, h.free = h.free[k-1], h.free[:k-1]
	} else {
		p = &sharer{}
	}
	p.owner, p.at = o, -1
	if h.named == nil {
		h.named = map[owner]*sharer{}
	}
	h.named[o] = p
	return p
}

// leave forgets a sequence that is over.
func (h *shares) leave(s *sequence) {
	p := s.sharer
	s.sharer = nil
	if p.living--; p.living > 0 || p == &h.nobody {
		return
	}
	delete(h.named, p.owner)
	if *p = (sharer{}); len(h.free) < keepSharers {
		h.free = append(h.free, p)
	}
}

// wait puts a sequence behind all others of its sharer.
func (h *shares) wait(s *sequence) {
	p := s.sharer
	s.before, s.behind = p.last, nil
	if p.last != nil {
		p.last.behind = s
	} else {
		p.first = s
	}
	p.last = s
	if p.at < 0 {
		heap.Push(&h.next, p)
	}
}

// stop takes a sequence out that waits.
func (h *shares) stop(s *sequence) {
	p := s.sharer
	if s.before != nil {
		s.before.behind = s.behind
	} else {
		p.first = s.behind
	}
	if s.behind != nil {
		s.behind.before = s.before
	} else {
		p.last = s.before
	}
	s.before, s.behind = nil, nil
	if p.first == nil {
		heap.Remove(&h.next, p.at)
	} else {
		h.fix(p)
	}
}

// take counts slots that a sequence got, or with -1 gave back.
func (h *shares) take(s *sequence, slots int) {
	s.sharer.slots += slots
	h.fix(s.sharer)
}

func (h *shares) fix(p *sharer) {
	if p.at >= 0 && len(h.next) > 1 {
		heap.Fix(&h.next, p.at)
	}
}

// yields is the sequence that gives way to a request of an owner in a line of so many
// requests; nil: none does. It is the newest one without a slot of the owner who has most
// requests by its weight, if the request is within its own owner's part.
func (h *shares) yields(o owner, weight, limit int) *sequence {
	mine, most, weights := h.find(o), h.find(owner{}), 0
	consider := func(p *sharer) {
		if p.requests == 0 {
			return
		}
		weights += p.weight
		a, b := p.requests*most.weight, most.requests*p.weight
		newer := p.last != nil && (most.last == nil || p.last.number > most.last.number)
		if most.requests == 0 || a > b || a == b && newer {
			most = p
		}
	}
	consider(&h.nobody)
	for _, p := range h.named {
		consider(p)
	}
	requests := 0
	if mine != nil && mine.requests > 0 {
		requests, weight = mine.requests, mine.weight
	} else {
		weights += weight
	}
	if most == mine || (requests+1)*weights > limit*weight {
		return nil
	}
	return most.last
}

// find is an owner's sharer; nil: it has nothing.
func (h *shares) find(o owner) *sharer {
	if o == (owner{}) {
		return &h.nobody
	}
	return h.named[o]
}

// turn is the sequence that gets the next slot; nil: none waits.
func (h *shares) turn() *sequence {
	if len(h.next) == 0 {
		return nil
	}
	return h.next[0].first
}

// sharerHeap has the sharer in front that has fewest slots by its weight; of equals the one
// whose sequence waits longest.
type sharerHeap []*sharer

func (h sharerHeap) Len() int { return len(h) }
func (h sharerHeap) Less(i, j int) bool {
	a, b := h[i].slots*h[j].weight, h[j].slots*h[i].weight
	return a < b || a == b && h[i].first.number < h[j].first.number
}

func (h sharerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *sharerHeap) Push(x any) {
	p := x.(*sharer)
	p.at = len(*h)
	*h = append(*h, p)
}

func (h *sharerHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.at = -1
	return p
}
