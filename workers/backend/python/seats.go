package python

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// seats are the processes of a model whose instances share them (INSTANCES_IN_PROCESS): a process has a
// channel for each of so many instances, which come to it one by one.
type seats struct {
	mu     sync.Mutex
	newest map[place]*hosting // guarded by mu: where instances find room
	ending sync.WaitGroup     // of hostings
}

// place says which instances may share a process: those of a group on a device.
type place struct {
	group  string
	device int
}

// hosting is one life of a process that several instances share.
type hosting struct {
	process process
	served  atomic.Uint64 // requests that all instances have executed
	closing sync.WaitGroup

	mu    sync.Mutex
	free  []*channel.Channel // guarded by mu: of instances that did not come
	taken int                // guarded by mu: instances that did not leave
	over  bool               // guarded by mu: no instance may come any more
}

// seat is the process as one of its instances sees it.
type seat struct {
	process
	hosting *hosting
}

// take gives an instance a channel of a process that has room, or of a new one. That is the seat's.
func (s *seats) take(ctx context.Context, m *model, at place, log *slog.Logger) (*channel.Channel, *seat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.newest[at]; h != nil {
		if c := h.join(); c != nil {
			return c, &seat{h.process, h}, nil
		}
	}
	h := &hosting{}
	fail := func(err error) error {
		for _, c := range h.free {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	for range m.limits.together {
		c, err := channel.New("sluice-"+at.group, exchangeSize)
		if err != nil {
			return nil, nil, fail(infer.Errorf(infer.Internal, "%w", err))
		}
		h.free = append(h.free, c)
	}
	var err error
	if h.process, err = m.backend.spawn(ctx, m, at.group, h.free); err != nil {
		return nil, nil, fail(err)
	}
	if s.newest == nil {
		s.newest = map[place]*hosting{}
	}
	s.newest[at] = h
	c := h.join()
	s.ending.Go(func() { h.watch(log) })
	return c, &seat{h.process, h}, nil
}

// join gives a channel that no instance has; nil: there is no room.
func (h *hosting) join() *channel.Channel {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || len(h.free) == 0 {
		return nil
	}
	select {
	case <-h.process.Exited():
		return nil
	default:
	}
	c := h.free[0]
	h.free = h.free[1:]
	h.taken++
	return c
}

// watch closes the channels without instances when the process has ended.
func (h *hosting) watch(log *slog.Logger) {
	<-h.process.Exited()
	h.mu.Lock()
	h.over = true
	free := h.free
	h.free = nil
	h.mu.Unlock()
	for _, c := range free {
		if err := c.Close(); err != nil {
			log.Error("the memory of a Python process can't be given back", "error", err)
		}
	}
}

// leave says that an instance is finalized: none comes any more, and what was kept for those that did
// not come is finalized when the last has left.
func (h *hosting) leave() (last bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.taken--; h.taken > 0 {
		return false, nil
	}
	for _, c := range h.free {
		c.SetEnding()
		err = errors.Join(err, c.Writer(channel.Commands, h.process.Exited()).Write(channel.Finalize, 0, 0, nil))
	}
	return true, err
}

// shared says that other instances may execute in the process.
func (r *run) shared() bool {
	_, ok := r.process.(*seat)
	return ok
}

// retire has no further instance come to the process.
func (r *run) retire() {
	if s, ok := r.process.(*seat); ok {
		s.hosting.mu.Lock()
		defer s.hosting.mu.Unlock()
		s.hosting.over = true
	}
}

// ended ends the part of an instance that was finalized: the process goes with its last one, and the
// channel with the process.
func (r *run) ended() error {
	s, ok := r.process.(*seat)
	if !ok {
		r.process.Stop(finalizeTimeout)
		return r.close()
	}
	h := s.hosting
	last, err := h.leave()
	if !last {
		h.closing.Go(func() {
			if err := r.close(); err != nil {
				r.log.Error("the memory of a Python process can't be given back", "error", err)
			}
		})
		return err
	}
	if err != nil && !errors.Is(err, channel.ErrClosed) {
		r.log.Error("a Python process can't be told to end", "error", err)
	}
	s.process.Stop(finalizeTimeout)
	h.closing.Wait()
	return r.close()
}
