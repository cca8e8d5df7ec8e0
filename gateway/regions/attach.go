package regions

import (
	"github.com/sluice-serve/sluice/infer"
)

// Use is one tensor of a request that lies in a region, as the request says.
type Use struct {
	Region string // the client's name of it
	Offset uint64
	Size   uint64
	Output bool // Index counts the requested outputs; false: the inputs
	Index  int
}

// hold is a request's memory with references to regions: the last Release of it gives
// them back.
type hold struct {
	infer.Buffer
	in    *Registry
	under *infer.Buffer // the request's memory before
	slots []uint32
	room  [4]uint32
	free  func(*infer.Buffer) // made once
}

// Attach gives the tensors of uses their places, and makes the request hold its regions
// as long as its memory is held. Regions of others than the caller, env's, do not exist.
// env's Header must be valid. On an error nothing is held and the request must not be
// executed.
// Errors: NotFound, and InvalidArg for what lies outside, in the original's words.
func (r *Registry) Attach(env *infer.Envelope, req *infer.Request, uses []Use) error {
	if len(uses) == 0 {
		return nil
	}
	h, ok := r.holds.Get().(*hold)
	if !ok {
		h = &hold{in: r}
		h.free = h.release
	}
	h.slots = h.room[:0]
	owner := r.owner(env)
	r.mu.Lock()
	err := r.attachLocked(h, owner, req, uses)
	if err != nil {
		r.dropLocked(h.slots)
	} else {
		r.used[owner.kind]++
	}
	r.mu.Unlock()
	if err != nil {
		r.holds.Put(h)
		return err
	}
	h.under = req.Memory
	var data []byte
	if h.under != nil {
		data = h.under.Data
	}
	h.Reset(data, h.free)
	req.Memory = &h.Buffer
	return nil
}

func (r *Registry) attachLocked(h *hold, owner owner, req *infer.Request, uses []Use) error {
	for i := range uses {
		u := &uses[i]
		slot, row := r.table.find(id{owner, u.Region})
		if slot == 0 {
			return infer.Errorf(infer.NotFound, "Unable to find shared memory region: '%s'", u.Region)
		}
		size := uint64(row.size)
		switch {
		case u.Offset >= size:
			return infer.Errorf(infer.InvalidArg, "Invalid offset for shared memory region: '%s'", u.Region)
		case u.Size > size-u.Offset, u.Size == 0 && !u.Output:
			return infer.Errorf(infer.InvalidArg, "Invalid offset + byte size for shared memory region: '%s'", u.Region)
		}
		row.refs++
		h.slots = append(h.slots, slot)
		place := infer.Place{Region: slot, Offset: int64(u.Offset), Size: int64(u.Size)}
		if u.Output {
			req.Outputs[u.Index].Place = place
		} else {
			req.Inputs[u.Index].Place = place
		}
	}
	return nil
}

// release is what the last Release of a hold does.
func (h *hold) release(*infer.Buffer) {
	r := h.in
	r.mu.Lock()
	r.dropLocked(h.slots)
	r.mu.Unlock()
	under := h.under
	h.under, h.Data = nil, nil
	r.holds.Put(h)
	under.Release()
}

func (r *Registry) dropLocked(slots []uint32) {
	for _, slot := range slots {
		if r.table.drop(slot) {
			close(r.regions[slot].idle)
		}
	}
}
