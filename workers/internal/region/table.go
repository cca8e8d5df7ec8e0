package region

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// Table is the regions of one gateway, by slot.
type Table struct {
	mu       sync.RWMutex
	regions  map[uint32]*Region // guarded by mu
	resident uint32             // guarded by mu: the slot that was given to a resident output last
	closed   bool               // guarded by mu
}

// NewTable makes an empty table.
func NewTable() *Table { return &Table{regions: map[uint32]*Region{}} }

// Open maps a file's range under a slot and owns the descriptor, also where it fails.
// Errors: InvalidArg where the memory is not what was said, AlreadyExists for a slot that
// has a region.
func (t *Table) Open(c Config, file int) error {
	r, err := open(c, file)
	if err != nil {
		return err
	}
	return t.add(r)
}

// OpenDevice puts device memory under a slot and owns it, also where it fails.
func (t *Table) OpenDevice(c Config, d Device) error { return t.add(openDevice(c, d)) }

func (t *Table) add(r *Region) error {
	t.mu.Lock()
	err := t.addLocked(r)
	t.mu.Unlock()
	if err != nil {
		r.Release()
		return errors.Join(err, r.err)
	}
	return nil
}

func (t *Table) addLocked(r *Region) error {
	slot := r.config.Slot
	switch {
	case t.closed:
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the connection has ended")
	case slot == 0 || slot > infer.MaxRegions:
		return infer.Errorf(infer.InvalidArg, "no shared memory region has slot %d", slot)
	case t.regions[slot] != nil:
		return infer.Errorf(infer.AlreadyExists, "slot %d has a shared memory region", slot)
	}
	t.regions[slot] = r
	return nil
}

// Acquire is the region of a slot with a reference, or nil.
func (t *Table) Acquire(slot uint32) *Region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.regions[slot]
	if r != nil {
		r.users.Add(1)
	}
	return r
}

// Close takes the region of a slot away and waits until nobody uses it, or ctx ends:
// then its last user frees it. NotFound where the slot has none.
func (t *Table) Close(ctx context.Context, slot uint32) error {
	t.mu.Lock()
	r := t.regions[slot]
	if slot > infer.MaxRegions {
		r = nil // Drop's
	} else {
		delete(t.regions, slot)
	}
	t.mu.Unlock()
	if r == nil {
		return infer.Errorf(infer.NotFound, "slot %d has no shared memory region", slot)
	}
	r.Release()
	select {
	case <-r.idle:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("shared memory region '%s' is still in use: %w", r.config.Name, context.Cause(ctx))
	}
}

// CloseAll takes all regions away; each is freed by its last user.
func (t *Table) CloseAll() {
	t.mu.Lock()
	all := t.regions
	t.regions, t.closed = nil, true
	t.mu.Unlock()
	for _, r := range all {
		r.Release()
	}
}
