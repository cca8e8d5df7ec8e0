package cuda

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// Pointer is an address of device memory: a CUdeviceptr. The host can't read what is there.
type Pointer uint64

// allocator is what a Heap stands on; *Device fits it.
type allocator interface {
	Alloc(n int64) (Pointer, error)
	Free(p Pointer) error
}

// Heap hands out memory of a device, and keeps what is given back for the next one that
// wants as much: the driver's own calls wait for all work of the device. It is safe for
// concurrent use.
type Heap struct {
	device allocator
	limit  int64

	mu     sync.Mutex
	used   int64               // guarded by mu: bytes that are handed out
	kept   int64               // guarded by mu: bytes that are kept
	spare  [maxClass][]Pointer // guarded by mu: by class
	closed bool                // guarded by mu: nothing is kept any more
}

// Blocks have sizes of powers of two, 256 bytes at least, as the driver aligns them.
const (
	minClass = 8
	maxClass = 48
)

// NewHeap makes a heap that takes limit bytes of the device at most.
func NewHeap(d allocator, limit int64) *Heap { return &Heap{device: d, limit: limit} }

// Block is memory of a Heap's; the zero Block is none.
type Block struct {
	At    Pointer
	class uint8
}

// Alloc takes n bytes. Unavailable where the device has no more of them, or the limit forbids it.
func (h *Heap) Alloc(n int64) (Block, error) {
	if n < 0 || n > h.limit {
		return Block{}, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"%d bytes of device memory were asked for, the limit is %d", n, h.limit)
	}
	class := max(minClass, bits.Len64(uint64(max(n, 1)-1)))
	if class >= maxClass {
		return Block{}, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"%d bytes of device memory are more than any device has", n)
	}
	size := int64(1) << class
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := len(h.spare[class]) - 1; last >= 0 {
		b := Block{h.spare[class][last], uint8(class)}
		h.spare[class] = h.spare[class][:last]
		h.kept -= size
		h.used += size
		return b, nil
	}
	if h.used > h.limit-size {
		return Block{}, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"%d bytes of device memory were asked for, %d of %d are in use", n, h.used, h.limit)
	}
	if h.used+h.kept > h.limit-size {
		if err := h.trimLocked(); err != nil {
			return Block{}, err
		}
	}
	at, err := h.device.Alloc(size)
	if infer.ReasonOf(err) == infer.ReasonMemory && h.kept > 0 { // what is kept may be what lacks
		if err := h.trimLocked(); err != nil {
			return Block{}, err
		}
		at, err = h.device.Alloc(size)
	}
	if err != nil {
		return Block{}, err
	}
	h.used += size
	return Block{at, uint8(class)}, nil
}

// Free gives a block back. An error is the driver's.
func (h *Heap) Free(b Block) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	size := int64(1) << b.class
	h.used -= size
	if h.closed {
		return h.device.Free(b.At)
	}
	h.kept += size
	h.spare[b.class] = append(h.spare[b.class], b.At)
	return nil
}

// Trim gives back to the driver what nobody uses.
func (h *Heap) Trim() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trimLocked()
}

// Close is Trim, also of what is given back after it.
func (h *Heap) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.trimLocked()
}

func (h *Heap) trimLocked() error {
	var errs []error
	for class := range h.spare {
		for _, p := range h.spare[class] {
			errs = append(errs, h.device.Free(p))
		}
		h.kept -= int64(len(h.spare[class])) << class
		h.spare[class] = nil
	}
	return errors.Join(errs...)
}

// InUse is how many bytes are handed out.
func (h *Heap) InUse() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}
