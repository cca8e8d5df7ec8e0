package region

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
	"github.com/sluice-serve/sluice/workers/wire"
)

// AddResident puts device memory of this process under a slot above those of clients, until Drop. It can
// be read and not written. The table owns d, also where it fails: Unavailable where all slots
// are taken, or the connection has ended.
func (t *Table) AddResident(d Device, size int64) (slot uint32, err error) {
	r := openDevice(Config{Name: "resident output", Size: size}, d)
	r.writable, r.frozen = false, true
	t.mu.Lock()
	if slot = t.freeLocked(); slot != 0 {
		r.config.Slot = slot
		t.regions[slot], t.resident = r, slot
	}
	t.mu.Unlock()
	if slot == 0 {
		r.Release()
		return 0, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "no more outputs can be resident in device memory")
	}
	return slot, nil
}

// freeLocked finds a free slot behind the last one, so that one is not used again soon; 0: there is none.
func (t *Table) freeLocked() uint32 {
	if t.closed {
		return 0
	}
	for slot, n := t.resident+1, 0; n <= wire.LastResident-wire.FirstResident; slot, n = slot+1, n+1 {
		if slot < wire.FirstResident || slot > wire.LastResident {
			slot = wire.FirstResident
		}
		if t.regions[slot] == nil {
			return slot
		}
	}
	return 0
}

// Drop lets go of what AddResident put under a slot; its last user frees it. Other slots are left alone.
func (t *Table) Drop(slot uint32) {
	if slot < wire.FirstResident {
		return
	}
	t.mu.Lock()
	r := t.regions[slot]
	delete(t.regions, slot)
	t.mu.Unlock()
	if r != nil {
		r.Release()
	}
}

// Pointer is where an offset that Check accepted lies on the device; false: the region is of
// host memory.
func (r *Region) Pointer(off int64) (cuda.Pointer, bool) {
	if r.device == nil {
		return 0, false
	}
	return r.device.Pointer() + cuda.Pointer(off), true
}

// Writable says that outputs may go to the region.
func (r *Region) Writable() bool { return r.writable }
