package python

import (
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// slots number the requests that a process has.
type slots struct {
	mu   sync.Mutex
	list []slot   // guarded by mu
	free []uint16 // guarded by mu
}

// slot is a number's. Its generation says how many requests had it.
type slot struct {
	generation uint64
	request    *request // nil: it is free
}

// take gives each of a batch's requests a key.
func (s *slots) take(x *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if need := len(x.requests) - len(s.free); need > channel.MaxSlot-len(s.list) {
		return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull,
			"the instance has too many requests that are open")
	}
	for i := range x.requests {
		n := len(s.list)
		if last := len(s.free) - 1; last >= 0 {
			n = int(s.free[last])
			s.free = s.free[:last]
		} else {
			s.list = append(s.list, slot{})
		}
		r := &x.requests[i]
		s.list[n].generation++
		s.list[n].request = r
		r.key = s.list[n].generation<<16 | uint64(n)
	}
	return nil
}

// find is the request of a key; nil: it has ended.
func (s *slots) find(key uint64) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(key & (channel.MaxSlot - 1))
	if n >= len(s.list) || s.list[n].generation != key>>16 {
		return nil
	}
	return s.list[n].request
}

// release ends the keys of requests that are over, once each.
func (s *slots) release(requests ...*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		n := r.key & (channel.MaxSlot - 1)
		s.list[n].request = nil
		s.free = append(s.free, uint16(n))
	}
}

// all are the requests that are open, with their keys.
func (s *slots) all() map[uint64]*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := map[uint64]*request{}
	for n, slot := range s.list {
		if slot.request != nil {
			open[slot.generation<<16|uint64(n)] = slot.request
		}
	}
	return open
}

// request is a request that a process has.
type request struct {
	batch *batch
	index int
	key   uint64 // guarded by batch.mu
	// failed says that it has its final answer, and what the process still sends is dropped;
	// closed that the process knows so, too. Guarded by batch.mu.
	failed, closed bool
}

// of is the request as the worker has it. The caller holds the batch's mu.
func (r *request) of() backend.Request {
	if r.batch.open != nil {
		return r.batch.open.Requests()[r.index]
	}
	return r.batch.b.Requests()[r.index]
}
