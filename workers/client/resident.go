package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// residentTable is the outputs that lie in device memory of workers. Their slots here are not those of
// the workers, which are each one's own.
type residentTable struct {
	mu      sync.Mutex
	last    uint32                    // guarded by mu
	outputs map[uint32]residentTensor // guarded by mu: by slot, above infer.MaxRegions
}

// residentTensor is one of them: a slot of the worker that a session is with.
type residentTensor struct {
	session *session
	slot    uint32
}

func (t *residentTable) add(o residentTensor) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outputs == nil {
		t.outputs = map[uint32]residentTensor{}
	}
	for {
		t.last = max(t.last+1, infer.MaxRegions+1)
		if _, used := t.outputs[t.last]; !used {
			t.outputs[t.last] = o
			return t.last
		}
	}
}

func (t *residentTable) remove(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.outputs, slot)
}

// find is what lies in a slot, if its worker has not been lost since.
func (t *residentTable) find(slot uint32) (residentTensor, error) {
	t.mu.Lock()
	o, ok := t.outputs[slot]
	t.mu.Unlock()
	if !ok || o.session.isLost() {
		return o, infer.Errorf(infer.Unavailable, "%w", infer.ErrTensorLost)
	}
	return o, nil
}

// segment names a place for the worker that s is with.
func (t *residentTable) segment(s *session, p infer.Place) (wire.Segment, error) {
	o, err := t.find(p.Region)
	switch {
	case err != nil:
		return wire.Segment{}, err
	case o.session != s:
		return wire.Segment{}, infer.Errorf(infer.Internal, "a tensor lies in the device memory of another worker")
	}
	return wire.InRegion(o.slot, p.Offset, p.Size), nil
}

// addResident is the place of an output that the worker says is resident, of a request or with nil
// of all.
func (r *received) addResident(
	b *infer.Batch, q *infer.Request, o *wire.Output, slot uint32, off int64,
) (infer.Place, error) {
	wanted := r.memory != nil && r.memory.session != nil && off == 0 && o.Datatype != infer.Bytes
	if q != nil {
		wanted = wanted && wantsResident(q, o.Name)
	} else {
		wanted = wanted && !slices.ContainsFunc(b.Requests, func(q *infer.Request) bool { return !wantsResident(q, o.Name) })
	}
	if !wanted {
		return infer.Place{}, infer.Errorf(infer.Internal,
			"output '%s' is resident in device memory, which nobody asked for", o.Name)
	}
	t := r.memory.session.resident
	here := t.add(residentTensor{r.memory.session, slot})
	r.passed = append(r.passed, infer.NewBuffer(nil, func(*infer.Buffer) { t.remove(here) }))
	return infer.Place{Region: here, Size: o.Data.Length}, nil
}

// wantsResident says that a request lets an output stay in device memory.
func wantsResident(q *infer.Request, output string) bool {
	return slices.ContainsFunc(q.Outputs, func(o infer.RequestedOutput) bool { return o.Resident && o.Name == output })
}

// readResident copies a resident tensor to the request arena.
func (w *Workers) readResident(ctx context.Context, p infer.Place) (*infer.Buffer, error) {
	o, err := w.resident.find(p.Region)
	if err != nil {
		return nil, err
	}
	mem, err := w.memory.Alloc(p.Size)
	if err != nil {
		return nil, err
	}
	b := infer.NewBuffer(mem, func(b *infer.Buffer) { w.memory.Free(b.Data) })
	for at := int64(0); at < p.Size; at += partSize {
		part := mem[at:min(at+partSize, p.Size)]
		m, err := o.session.client.ReadRegion(ctx,
			&workerpb.ReadRegionRequest{Slot: o.slot, Offset: p.Offset + at, ByteSize: int64(len(part))})
		switch {
		case err != nil && lostDuring(o.session, err):
			_, err = w.resident.find(p.Region)
		case err != nil:
			err = fromStatus(err)
		case len(m.Data) != len(part):
			err = infer.Errorf(infer.Internal, "a worker read %d bytes of device memory, want %d", len(m.Data), len(part))
		default:
			copy(part, m.Data)
			continue
		}
		b.Release()
		return nil, fmt.Errorf("tensor in device memory: %w", err)
	}
	return b, nil
}

// takesDevice says that instances take tensors in device memory, and leave them for each other.
func takesDevice(s *session, m *workerpb.LoadResponse) bool {
	_, lane := s.link.(*laneLink)
	return lane && slices.Contains(m.MemoryKinds, workerpb.MemoryKind_DEVICE)
}

// Device names the worker in whose device memory all instances of the version take tensors, and
// leave outputs for others that are loaded there; "": there is none.
func (v *Version) Device() string {
	if len(v.groups) != 1 || !v.groups[0].onDevice.Load() {
		return ""
	}
	return v.groups[0].worker.place
}

// reachesResident says that the version is where a resident tensor lies.
func (v *Version) reachesResident(slot uint32) bool {
	if v.Device() == "" {
		return false
	}
	g := v.groups[0]
	o, err := g.worker.owner.resident.find(slot)
	if err != nil {
		return false
	}
	g.worker.mu.Lock()
	defer g.worker.mu.Unlock()
	return g.session == o.session
}
