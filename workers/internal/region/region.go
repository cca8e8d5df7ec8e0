package region

import (
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
)

// sealWrite is the seal after which nobody can write any more.
const sealWrite = unix.F_SEAL_WRITE

// Device is memory of a device as its library reads and writes it. Offsets and sizes are
// checked before.
type Device interface {
	Read(to []byte, off int64) error
	Write(off int64, from []byte) error
	// Pointer is where it begins on the device.
	Pointer() cuda.Pointer
	Close() error
}

// Config is what a gateway says of a region. Sizes are in bytes.
type Config struct {
	Slot   uint32
	Name   string // the client's name of it
	Offset int64  // of the range in the memory
	Size   int64  // of the range
	// Again takes memory that is too small as a region that is bad from the start:
	// requests may be on their way that name it.
	Again bool
}

// Region is one region. Its methods may be called by who holds a reference.
type Region struct {
	config Config

	file     int    // -1: device memory
	volume   uint64 // and inode: which file it is
	inode    uint64
	mapping  []byte // whole pages; nil: it is not mapped
	mem      []byte // the range in mapping
	guard    int    // of mapping
	device   Device
	writable bool
	frozen   bool // nobody can change it
	fixed    bool // it can't become smaller
	small    atomic.Bool

	users atomic.Int64  // the table's reference and those of executions
	idle  chan struct{} // closed after the last release
	err   error         // of closing it; valid after idle
}

// open takes a descriptor over, also where it fails.
func open(c Config, file int) (*Region, error) {
	r := &Region{config: c, file: file, guard: -1, idle: make(chan struct{})}
	r.users.Store(1)
	if err := r.check(); err != nil {
		return nil, errors.Join(err, unix.Close(file))
	}
	if err := r.mapIt(); err != nil {
		return nil, errors.Join(err, unix.Close(file))
	}
	return r, nil
}

// check says that the memory is what it should be.
func (r *Region) check() error {
	c := &r.config
	if c.Offset < 0 || c.Size <= 0 || c.Size > infer.MaxRegionSize || c.Offset > infer.MaxRegionSize {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s' can't have %d bytes at offset %d", c.Name, c.Size, c.Offset)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(r.file, &fs); err != nil {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s': %w", c.Name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.file, &st); err != nil {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s': %w", c.Name, err)
	}
	if fs.Type != unix.TMPFS_MAGIC || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s' is no file in memory", c.Name)
	}
	r.volume, r.inode = st.Dev, st.Ino
	sealed := false
	if seals, err := unix.FcntlInt(uintptr(r.file), unix.F_GET_SEALS, 0); err == nil {
		r.fixed = seals&unix.F_SEAL_SHRINK != 0
		r.frozen = r.fixed && seals&sealWrite != 0 // what is cut off turns to zeros
		sealed = seals&sealWrite != 0
	}
	flags, err := unix.FcntlInt(uintptr(r.file), unix.F_GETFL, 0)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s': %w", c.Name, err)
	}
	r.writable = flags&unix.O_ACCMODE == unix.O_RDWR && !sealed
	if st.Size-c.Offset >= c.Size {
		return nil
	}
	r.small.Store(true)
	if c.Again {
		return nil
	}
	return infer.Errorf(infer.InvalidArg, "shared memory region '%s' has %d bytes, less than %d at offset %d", c.Name, st.Size, c.Size, c.Offset)
}

// mapIt maps the range, where that can be survived.
func (r *Region) mapIt() error {
	if !guarded() || r.small.Load() {
		return nil
	}
	page := int64(os.Getpagesize())
	skip := r.config.Offset % page
	prot := unix.PROT_READ
	if r.writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(r.file, r.config.Offset-skip, int(r.config.Size+skip), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if errors.Is(err, unix.EPERM) && r.writable { // sealed against further writers
		r.writable = false
		mem, err = unix.Mmap(r.file, r.config.Offset-skip, int(r.config.Size+skip), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	}
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s' can't be mapped: %w", r.config.Name, err)
	}
	if r.guard = guard(mem); r.guard < 0 {
		return errors.Join(infer.Errorf(infer.ResourceExhausted, "there are too many shared memory regions"), unix.Munmap(mem))
	}
	r.mapping, r.mem = mem, mem[skip:skip+r.config.Size:skip+r.config.Size]
	return nil
}

// openDevice makes a region of device memory, which it owns. Its Offset has no meaning.
func openDevice(c Config, d Device) *Region {
	r := &Region{config: c, file: -1, guard: -1, device: d, writable: true, fixed: true, idle: make(chan struct{})}
	r.users.Store(1)
	return r
}

// Slot is the region's slot.
func (r *Region) Slot() uint32 { return r.config.Slot }

// Check says whether n bytes at off lie in the region; both may come from anywhere.
func (r *Region) Check(off, n int64) error {
	if off < 0 || n < 0 || off > r.config.Size || n > r.config.Size-off {
		return infer.Errorf(infer.InvalidArg, "%d bytes at offset %d lie outside shared memory region '%s' of %d bytes", n, off, r.config.Name, r.config.Size)
	}
	return nil
}

// InPlace is the memory at a range that Check accepted, for who reads it once or doesn't
// mind that it changes meanwhile; nil where there is none in this process.
func (r *Region) InPlace(off, n int64) []byte {
	if r.mem == nil {
		return nil
	}
	return r.mem[off : off+n : off+n]
}

// Room is InPlace for who writes; nil where that can't be done.
func (r *Region) Room(off, n int64) []byte {
	if !r.writable {
		return nil
	}
	return r.InPlace(off, n)
}

// Overlaps says whether n bytes at off and m bytes at at in another region, which may be
// another range of the same file, have bytes in common.
func (r *Region) Overlaps(off, n int64, other *Region, at, m int64) bool {
	if r.device != nil && other.device != nil {
		a, b := r.device.Pointer()+cuda.Pointer(off), other.device.Pointer()+cuda.Pointer(at)
		return a < b+cuda.Pointer(m) && b < a+cuda.Pointer(n)
	}
	if r.volume != other.volume || r.inode != other.inode || r.device != nil || other.device != nil {
		return false
	}
	off += r.config.Offset
	at += other.config.Offset
	return off < at+m && at < off+n
}

// Frozen says that nobody can change the memory any more.
func (r *Region) Frozen() bool { return r.frozen }

// Read copies from a range that Check accepted. Where the memory is not there any more
// the rest is zero and Err tells; other errors are those of a device.
func (r *Region) Read(to []byte, off int64) error {
	switch {
	case r.device != nil:
		return r.device.Read(to, off)
	case r.mem != nil:
		copy(to, r.mem[off:])
		return nil
	case r.small.Load():
		clear(to)
		return nil
	}
	return r.throughFile(to, off, unix.Pread)
}

// Write copies to a range that Check accepted. Errors: InvalidArg where it can't be
// written. Where the memory is not there any more Err tells.
func (r *Region) Write(off int64, from []byte) error {
	switch {
	case !r.writable:
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s' can't be written", r.config.Name)
	case r.device != nil:
		return r.device.Write(off, from)
	case r.mem != nil:
		copy(r.mem[off:], from)
		return nil
	case r.small.Load() || r.shrunk(): // writing would make it larger again
		return nil
	}
	return r.throughFile(from, off, unix.Pwrite)
}

func (r *Region) throughFile(b []byte, off int64, move func(int, []byte, int64) (int, error)) error {
	for at := 0; at < len(b); {
		n, err := move(r.file, b[at:], r.config.Offset+off+int64(at))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil && !errors.Is(err, unix.ENOSPC):
			return infer.Errorf(infer.InvalidArg, "shared memory region '%s': %w", r.config.Name, err)
		case n <= 0:
			r.small.Store(true)
			clear(b[at:])
			return nil
		default:
			at += n
		}
	}
	return nil
}

// shrunk looks at the file.
func (r *Region) shrunk() bool {
	if r.fixed {
		return false
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.file, &st); err != nil || st.Size-r.config.Offset < r.config.Size {
		r.small.Store(true)
	}
	return r.small.Load()
}

// Err is the error of every request that names the region once its memory is not there any
// more; nil while it is. It costs a system call where the memory isn't sealed.
func (r *Region) Err() error {
	if r.small.Load() || r.guard >= 0 && guardBad(r.guard) || r.shrunk() {
		return infer.Errorf(infer.InvalidArg, "shared memory region '%s' was truncated after it was registered, or its file system is full; it has to be unregistered", r.config.Name)
	}
	return nil
}

// Release gives a reference back.
func (r *Region) Release() {
	if r.users.Add(-1) > 0 {
		return
	}
	var errs []error
	if r.guard >= 0 {
		unguard(r.guard)
	}
	if r.mapping != nil {
		errs = append(errs, unix.Munmap(r.mapping))
		r.mapping, r.mem = nil, nil
	}
	if r.file >= 0 {
		errs = append(errs, unix.Close(r.file))
	}
	if r.device != nil {
		errs = append(errs, r.device.Close())
	}
	r.err = errors.Join(errs...)
	close(r.idle)
}
