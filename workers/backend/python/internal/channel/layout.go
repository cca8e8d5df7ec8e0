package channel

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Protocol is the number that both sides name.
const Protocol = 1

// Slots is how many requests have a word that says whether they are cancelled; MaxSlot bounds
// the slots of all.
const (
	Slots   = 4096
	MaxSlot = 1 << 16
)

const (
	magic      = 0x59504c53
	atLevels   = 8
	atState    = 12
	atDone     = 64 // of ring 0; the others follow
	doneStride = 64
	atSlots    = 4096
	atRings    = 20480
	ringSize   = 262144
	memorySize = atRings + rings*ringSize
)

// The rings, by who writes: the worker the first two, the process the others.
const (
	Commands = iota
	Replies
	Results
	Events
	rings
)

// Channel is the memory of one channel, mapped. Its maker is the worker.
type Channel struct {
	Exchange *Exchange
	memory   *os.File
	mem      []byte
	events   [rings]*os.File
	asking   *os.File // eventfd: the sum of what is added to it is the number of the last question
}

// New makes a channel whose exchange memory has room for so many bytes, which take none until
// they are used. name shows in /proc alone.
func New(name string, exchange int64) (c *Channel, err error) {
	c = &Channel{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.memory, c.mem, err = shared(name, memorySize); err != nil {
		return c, err
	}
	c.word(0).Store(magic)
	c.word(4).Store(Protocol)
	for i := range c.events {
		flags := unix.EFD_CLOEXEC
		if i == Events { // its reader waits in the runtime's poller
			flags |= unix.EFD_NONBLOCK
		}
		fd, err := unix.Eventfd(0, flags)
		if err != nil {
			return c, fmt.Errorf("channel: eventfd: %w", err)
		}
		c.events[i] = os.NewFile(uintptr(fd), "eventfd")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return c, fmt.Errorf("channel: eventfd: %w", err)
	}
	c.asking = os.NewFile(uintptr(fd), "eventfd")
	c.Exchange, err = newExchange(name, exchange)
	return c, err
}

// Files are what the process inherits, in the order of the fields memory, exchange, ready and
// events of its argument. They stay the channel's.
func (c *Channel) Files() []*os.File {
	return append([]*os.File{c.memory, c.Exchange.file, c.asking}, c.events[:]...)
}

// Ask asks the process whether its model is ready. The nth question is answered by READINESS with
// that number, or a later one.
func (c *Channel) Ask() error { return add(c.asking, 1) }

// Close unmaps the memory. Nothing may use the channel any more.
func (c *Channel) Close() error {
	var errs []error
	for _, f := range append(c.events[:], c.asking) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if c.mem != nil {
		errs = append(errs, unix.Munmap(c.mem), c.memory.Close())
		c.mem = nil
	}
	if c.Exchange != nil {
		errs = append(errs, c.Exchange.close())
	}
	return errors.Join(errs...)
}

// SetLevels says which log lines are wanted: bit 0 error, 1 warning, 2 info, 3 verbose.
func (c *Channel) SetLevels(levels uint32) { c.word(atLevels).Store(levels) }

// SetEnding says that the process is to end.
func (c *Channel) SetEnding() { c.word(atState).Store(1) }

// Cancel says that the request of that key is cancelled. Keys of slots beyond Slots have no word.
func (c *Channel) Cancel(key uint64) {
	if slot := key & (MaxSlot - 1); slot < Slots {
		c.word(atSlots + 4*int(slot)).Store(uint32(key >> 16))
	}
}

// Cancelled is what the process sees of Cancel.
func (c *Channel) Cancelled(key uint64) bool {
	slot := key & (MaxSlot - 1)
	return slot < Slots && c.word(atSlots+4*int(slot)).Load() == uint32(key>>16)
}

func (c *Channel) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&c.mem[at])) }

func (c *Channel) done(ring int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.mem[atDone+ring*doneStride]))
}

func (c *Channel) ring(i int) []byte {
	return c.mem[atRings+i*ringSize:][:ringSize:ringSize]
}

// shared makes a memfd of size bytes and maps it.
func shared(name string, size int64) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("channel: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("channel: memfd of %d bytes: %w", size, err), f.Close())
	}
	// A process that made it smaller would end the worker by a fault.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("channel: seal memfd: %w", err), f.Close())
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("channel: map %d bytes: %w", size, err), f.Close())
	}
	return f, mem, nil
}
