package shm

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"golang.org/x/sys/unix"
)

// maxArena keeps block numbers within 32 bits.
const maxArena = int64(1) << 36

// reserved is what an arena of a peer has behind its size, for AllocSmall alone: what tells
// of tensors must have room where they fill the arena.
const reserved = 64 << 10

// Arena is memory of a fixed size that tensors and descriptors are laid out in. One
// side owns the allocation (Alloc, Free); the other reads by offset (View). Its
// methods are safe for concurrent use, but for Close.
//
// Freed pages are not given back to the system: F_SEAL_FUTURE_WRITE forbids punching
// holes, and a hole costs more than the page faults that it saves. Since the lowest
// free address is taken first, what is resident stays near the peak of use.
type Arena struct {
	mem  []byte
	size int64 // of mem, without what is reserved
	fd   int   // -1: no memfd under it

	mu    sync.Mutex
	buddy *buddy // nil: the peer allocates
	rest  *buddy // of what is reserved; nil: nothing is

	restAt, restSize int64 // where rest lies
}

// NewArena makes an arena of size bytes (rounded up to a page) that this process
// allocates from and its peers read: they can map it read-only, but neither write nor
// resize it. name shows in /proc only.
func NewArena(name string, size int64) (*Arena, error) {
	a, err := newArena(name, size, 0)
	if err != nil {
		return nil, err
	}
	a.buddy = newBuddy(a.size >> unitShift)
	// Before Linux 5.1 there is no such seal; a worker could then write into the
	// inputs of its own models, which is no wall between tenants anyway.
	err = seal(a.fd, sealSize|sealFutureWrite|unix.F_SEAL_SEAL)
	if errors.Is(err, unix.EINVAL) {
		err = seal(a.fd, sealSize|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// NewPeerArena makes an arena that the peer maps writable and allocates from
// (OpenArena); this process only reads it, by View. Alloc panics. A little more than size is
// mapped: see AllocSmall.
func NewPeerArena(name string, size int64) (*Arena, error) {
	a, err := newArena(name, size, reserved)
	if err != nil {
		return nil, err
	}
	if err := seal(a.fd, sealSize|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// OpenArena maps an arena whose descriptor was inherited, which it owns from then on.
// A writable one is allocated from here (the other end of NewPeerArena); the other is
// read only. It fails where the descriptor is no memfd sealed against resizing.
func OpenArena(fd int, writable bool) (*Arena, error) {
	size, err := checkedSize(fd)
	if err != nil {
		return nil, err
	}
	more := int64(0)
	if writable {
		more = reserved
	}
	if size <= more || size > maxArena+more || size%unitSize != 0 {
		return nil, fmt.Errorf("shm: an arena can't have %d bytes", size)
	}
	mem, err := mapShared(fd, size, writable)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fd)
	a := &Arena{mem: mem, size: size - more, fd: fd}
	if writable {
		a.buddy, a.rest = newBuddy(a.size>>unitShift), newBuddy(more>>unitShift)
		a.restAt, a.restSize = a.size, more
	}
	return a, nil
}

// NewHeap makes an arena of the same methods in private memory, for a gateway whose
// workers all are on other hosts. Its FD is -1.
func NewHeap(limit int64) (*Arena, error) {
	size, err := arenaSize(limit)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return &Arena{mem: mem, size: size, fd: -1, buddy: newBuddy(size >> unitShift)}, nil
}

func arenaSize(size int64) (int64, error) {
	if size <= 0 || size > maxArena {
		return 0, fmt.Errorf("shm: an arena can't have %d bytes, the most is %d", size, maxArena)
	}
	return roundToPage(size), nil
}

// newArena is an arena with more behind it for its peer, where that is what allocates.
func newArena(name string, size, more int64) (*Arena, error) {
	size, err := arenaSize(size)
	if err != nil {
		return nil, err
	}
	fd, err := newMemfd(name, size+more)
	if err != nil {
		return nil, err
	}
	mem, err := mapShared(fd, size+more, more == 0)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Arena{mem: mem, size: size, fd: fd}, nil
}

// Alloc takes n >= 0 bytes, aligned to 64, with whatever they held before. The caller
// owns them until Free. A full arena is Unavailable with reason memory_full.
func (a *Arena) Alloc(n int64) ([]byte, error) {
	if a.buddy == nil {
		panic("shm: Alloc from an arena of the peer")
	}
	if n < 0 {
		panic(fmt.Sprintf("shm: Alloc of %d bytes", n))
	}
	if n > a.size {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"%d bytes don't fit into the tensor memory of %d bytes", n, a.size)
	}
	a.mu.Lock()
	start, ok := a.buddy.alloc(unitsOf(n))
	inUse := a.buddy.inUse
	a.mu.Unlock()
	if !ok {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"no room for %d bytes: %d of %d bytes of tensor memory are in use", n, inUse<<unitShift, a.size)
	}
	off := int64(start) << unitShift
	return a.mem[off : off+n : off+max(n, 1)], nil
}

// AllocSmall is Alloc for what tells of tensors: an arena that was opened to be allocated from
// has memory for it which Alloc doesn't give away, 64 KiB, and begins with that; so has one
// with ReserveSmall.
func (a *Arena) AllocSmall(n int64) ([]byte, error) {
	if a.rest == nil || n < 0 || n > reserved {
		return a.Alloc(n)
	}
	a.mu.Lock()
	start, ok := a.rest.alloc(unitsOf(n))
	a.mu.Unlock()
	if !ok {
		return a.Alloc(n)
	}
	off := a.restAt + int64(start)<<unitShift
	return a.mem[off : off+n : off+max(n, 1)], nil
}

// ReserveSmall sets a sixty-fourth of the arena aside for AllocSmall, a mebibyte at most. It must come before anything is
// allocated: small blocks that stay lie there together, and not between large ones, for which there would be no room.
func (a *Arena) ReserveSmall() {
	n := min(a.size/64, 1<<20)
	a.mu.Lock()
	defer a.mu.Unlock()
	start, ok := a.buddy.alloc(unitsOf(n))
	if !ok || a.rest != nil {
		panic("shm: ReserveSmall of an arena that is in use")
	}
	a.buddy.inUse = 0 // nobody's yet
	a.rest, a.restAt, a.restSize = newBuddy(int64(unitsOf(n))), int64(start)<<unitShift, int64(unitsOf(n))<<unitShift
}

// unitsOf is how many units n bytes take, at least one.
func unitsOf(n int64) uint32 { return max(uint32((n+unitSize-1)>>unitShift), 1) }

// Free gives back a block; b begins where the slice from Alloc did. It panics where
// no block in use begins there.
func (a *Arena) Free(b []byte) {
	off, ok := a.Offset(b)
	if !ok {
		panic("shm: Free of memory outside the arena")
	}
	a.FreeAt(off)
}

// FreeAt is Free by the block's offset.
func (a *Arena) FreeAt(off int64) {
	if a.buddy == nil || off < 0 || off >= int64(len(a.mem)) || off%unitSize != 0 {
		panic(fmt.Sprintf("shm: Free of offset %d, which no block can have", off))
	}
	a.mu.Lock()
	defer a.mu.Unlock() // release panics on a double free
	if a.rest != nil && off >= a.restAt && off < a.restAt+a.restSize {
		a.rest.release(uint32((off - a.restAt) >> unitShift))
		return
	}
	a.buddy.release(uint32(off >> unitShift))
}

// Holds says that b lies in this arena. A slice without capacity never does.
func (a *Arena) Holds(b []byte) bool {
	_, ok := a.Offset(b)
	return ok
}

// Offset is where b begins in the arena, if it lies there.
func (a *Arena) Offset(b []byte) (int64, bool) {
	if cap(b) == 0 || len(a.mem) == 0 {
		return 0, false
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if p < base || p-base >= uintptr(len(a.mem)) || uintptr(len(b)) > uintptr(len(a.mem))-(p-base) {
		return 0, false
	}
	return int64(p - base), true
}

// View is the n bytes at off, valid until Close. Ranges that don't lie in the arena
// are Internal; off and n may come from anywhere.
func (a *Arena) View(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > int64(len(a.mem)) || n > int64(len(a.mem))-off {
		return nil, infer.Errorf(infer.Internal, "%d bytes at %d lie outside the tensor memory of %d bytes", n, off, len(a.mem))
	}
	return a.mem[off : off+n : off+n], nil
}

// FD is the memfd to hand over; it stays the arena's.
func (a *Arena) FD() int { return a.fd }

// Size is what Alloc can give away in all, in bytes.
func (a *Arena) Size() int64 { return a.size }

// InUse is the bytes in blocks from Alloc that were not freed; 0 for an arena that
// the peer allocates from.
func (a *Arena) InUse() int64 {
	if a.buddy == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.buddy.inUse << unitShift
}

// Close unmaps the arena and closes its descriptor. Nothing may use it, or memory from
// it, any more. A second Close does nothing.
func (a *Arena) Close() error {
	var errs []error
	if a.mem != nil {
		if err := unix.Munmap(a.mem); err != nil {
			errs = append(errs, fmt.Errorf("shm: unmap: %w", err))
		}
		a.mem = nil
	}
	if a.fd >= 0 {
		if err := unix.Close(a.fd); err != nil {
			errs = append(errs, fmt.Errorf("shm: close: %w", err))
		}
		a.fd = -1
	}
	return errors.Join(errs...)
}
