package channel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// Areas of segments.
const (
	InFrame  = 0
	InOurs   = 1 // the exchange memory
	InInputs = 2 // the request arena
	InAnswer = 3 // the response arena
)

// Segment is where bytes lie.
type Segment struct {
	Area           uint8
	Offset, Length uint64
}

const (
	pageSize = 4096
	// keepResident is where in the exchange memory freed pages are given back to the system:
	// below it they stay, since touching them anew costs more than a copy.
	keepResident = 64 << 20
)

// Exchange is memory that the worker allocates from and both sides read and write.
type Exchange struct {
	file *os.File
	mem  []byte

	mu     sync.Mutex
	blocks []exchanged // guarded by mu: those in use, ascending
}

// exchanged is a block in use.
type exchanged struct {
	offset, size, asked int64 // size is whole pages
	given               bool  // to the process: it may answer with it, and give it back
}

func newExchange(name string, size int64) (*Exchange, error) {
	f, mem, err := shared(name, roundToPage(max(size, pageSize)))
	if err != nil {
		return nil, err
	}
	return &Exchange{file: f, mem: mem}, nil
}

func (e *Exchange) close() error { return errors.Join(unix.Munmap(e.mem), e.file.Close()) }

// Alloc takes n bytes, at a page's start and with whatever they held before. given says that
// they go to the process, to be answered with or given back. Where there is no room it is
// Unavailable with reason memory_full.
func (e *Exchange) Alloc(n int64, given bool) (Segment, []byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	size := roundToPage(max(n, 1))
	at, i := int64(0), 0
	if n >= 0 && size > 0 {
		for ; i < len(e.blocks) && e.blocks[i].offset-at < size; i++ {
			at = e.blocks[i].offset + e.blocks[i].size
		}
	}
	if n < 0 || size <= 0 || size > int64(len(e.mem))-at {
		return Segment{}, nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory,
			"there is no room for %d bytes between the worker and the model's process", n)
	}
	e.blocks = slices.Insert(e.blocks, i, exchanged{offset: at, size: size, asked: n, given: given})
	return Segment{Area: InOurs, Offset: uint64(at), Length: uint64(n)}, e.mem[at : at+n : at+n], nil
}

// Free gives back the block that begins where s does. It is no error that none does.
func (e *Exchange) Free(s Segment) { e.free(s, false) }

// FreeAnswered gives back the block that s lies in, if it is one that was given to the process.
// False: it is none.
func (e *Exchange) FreeAnswered(s Segment) bool { return e.free(s, true) }

func (e *Exchange) free(s Segment, given bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, ok := e.findLocked(s)
	if !ok || given && !e.blocks[i].given {
		return false
	}
	b := e.blocks[i]
	e.blocks = slices.Delete(e.blocks, i, i+1)
	if at := max(b.offset, keepResident); at < b.offset+b.size {
		// What can't be given back stays, and is used again.
		_ = unix.Fallocate(int(e.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, b.offset+b.size-at)
	}
	return true
}

// Answered is the bytes of a segment that the process names: it must lie in a block that was
// given to it. They may change while they are read.
func (e *Exchange) Answered(s Segment) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, ok := e.findLocked(s)
	if s.Area != InOurs || !ok || !e.blocks[i].given {
		return nil, fmt.Errorf("%w: %d bytes at %d of area %d are not its own", ErrCorrupt, s.Length, s.Offset, s.Area)
	}
	return e.mem[s.Offset : s.Offset+s.Length : s.Offset+s.Length], nil
}

// findLocked is the block that s lies in.
func (e *Exchange) findLocked(s Segment) (int, bool) {
	if s.Offset > uint64(len(e.mem)) || s.Length > uint64(len(e.mem)) {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(e.blocks, int64(s.Offset), func(b exchanged, at int64) int {
		switch {
		case b.offset+b.size <= at:
			return -1
		case b.offset > at:
			return 1
		}
		return 0
	})
	if !found || int64(s.Offset+s.Length) > e.blocks[i].offset+e.blocks[i].asked {
		return 0, false
	}
	return i, true
}

// InUse is how many bytes are in blocks.
func (e *Exchange) InUse() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := int64(0)
	for _, b := range e.blocks {
		n += b.asked
	}
	return n
}

func roundToPage(n int64) int64 { return (n + pageSize - 1) &^ (pageSize - 1) }
