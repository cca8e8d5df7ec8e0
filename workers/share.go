package workers

import (
	"sync/atomic"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// shared is a backend's model that several loads use, which differ in their instances
// alone. The last Close closes it.
type shared struct {
	backend.Model
	users  atomic.Int32
	handle atomic.Uint64 // of the load that it calls its gateway for: the last one

	memory []*worker.MemoryUsage // what its first load took; set before that is ready
}

// share is one user's; its Model is still to be set.
func share() *shared {
	s := &shared{}
	s.users.Store(1)
	return s
}

// again adds a user; false: it is closed.
func (s *shared) again() bool {
	for {
		n := s.users.Load()
		if n == 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Close fits backend.Model.
func (s *shared) Close() error {
	if s.users.Add(-1) > 0 {
		return nil
	}
	return s.Model.Close()
}

// sharedWith finds the model of another load, of the same files; nil where it can't be
// used any more.
func (c *connection) sharedWith(handle uint64, m *model) *shared {
	if handle == 0 {
		return nil
	}
	other, err := c.find(handle)
	if err != nil || other.spec.ModelFile != m.spec.ModelFile || other.spec.Name != m.spec.Name {
		return nil
	}
	select {
	case <-other.ready:
	default:
		return nil
	}
	if s, ok := other.loaded.(*shared); ok && other.err == nil && s.again() {
		return s
	}
	return nil
}
