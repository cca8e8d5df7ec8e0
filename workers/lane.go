package workers

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/region"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// Shared is the memory that a gateway of the same host handed over. The worker closes
// it when it ends.
type Shared struct {
	Requests  *shm.Arena // read only
	Responses *shm.Arena // allocated from here
	Lane      *shm.Lane
	Pass      *os.File // where descriptors of clients' memory come from (shm.Taker); nil: none do
}

// Close unmaps all of it. No instance may run any more.
func (s *Shared) Close() error {
	var first error
	for _, err := range []error{s.Requests.Close(), s.Responses.Close(), s.Lane.Close()} {
		if first == nil {
			first = err
		}
	}
	if s.Pass != nil {
		first = errors.Join(first, s.Pass.Close()) // it stays: a call may be looking at it
	}
	return first
}

// lane is the worker's end of the memory shared with its gateway: what is allocated
// in the response arena, and for which token. Its methods are safe for concurrent use.
type lane struct {
	Shared
	wait time.Duration // how long a full arena is waited for

	mu    sync.Mutex
	sent  []sent   // guarded by mu: by token
	spare []uint64 // guarded by mu: tokens to be used again
	free  []*block // guarded by mu: to be used again
	boxes map[uint32]bool
	gone  atomic.Bool // the gateway is

	regions *region.Table // where resident outputs are; set before any instance is made
	dropped []uint32      // guarded by mu: slots of resident outputs that the gateway gave back
	pins    pins
}

// keptBlocks is how many records of blocks are kept for reuse.
const keptBlocks = 1024

// sent is a result that the gateway still reads.
type sent struct {
	used     bool
	memory   []byte   // of the descriptor
	blocks   []*block // one reference for each entry
	resident []uint32 // slots of resident outputs
}

func newLane(s Shared, wait time.Duration) *lane {
	return &lane{Shared: s, wait: wait, boxes: map[uint32]bool{}}
}

// mailbox is the transport of one instance on the lane.
type mailbox struct {
	lane  *lane
	index uint32
	box   *shm.Mailbox
}

func (l *lane) newTransport(index uint32) (transport, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.boxes[index] {
		return nil, infer.Errorf(infer.InvalidArg, "mailbox %d has an instance already", index)
	}
	box, err := l.Lane.Mailbox(int(index))
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "%w", err)
	}
	l.boxes[index] = true
	return &mailbox{lane: l, index: index, box: box}, nil
}

func (t *mailbox) receive(x *execution) error {
	off, n, err := t.box.Take(0)
	if err != nil {
		return errStopped
	}
	src, err := t.lane.Requests.View(off, n)
	if err != nil {
		return err
	}
	if err := wire.DecodeBatch(src, &x.batch); err != nil {
		return err
	}
	flags, err := t.lane.Requests.View(off+wire.FlagsOffset(n), wire.FlagsSize(len(x.batch.Requests)))
	if err != nil {
		return err
	}
	p := unsafe.Pointer(unsafe.SliceData(flags))
	if uintptr(p)%unsafe.Alignof(uint32(0)) != 0 {
		return fmt.Errorf("a batch's descriptor at offset %d is not aligned", off)
	}
	x.flags = unsafe.Slice((*uint32)(p), len(x.batch.Requests))
	return nil
}

func (t *mailbox) view(_ *execution, _ int, s wire.Segment) ([]byte, error) {
	if s.Offset&wire.InAnswers != 0 {
		return t.lane.Responses.View(s.Offset&^wire.InAnswers, s.Length)
	}
	return t.lane.Requests.View(s.Offset, s.Length)
}

func (t *mailbox) alloc(x *execution, n int64) (*block, error) {
	mem, err := t.lane.alloc(x, n, t.lane.Responses.Alloc)
	if err != nil {
		return nil, err
	}
	l := t.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	var b *block
	if last := len(l.free) - 1; last >= 0 {
		b, l.free = l.free[last], l.free[:last]
	} else {
		b = &block{}
	}
	b.mem, b.refs = mem, 1
	return b, nil
}

func (t *mailbox) place(d *draft, b *block, data []byte) wire.Segment {
	if b == nil {
		return wire.Segment{}
	}
	off, _ := t.lane.Responses.Offset(data) // it lies in b
	d.blocks = append(d.blocks, b)
	return wire.Segment{Offset: off, Length: int64(len(data))}
}

// send announces d. Where no memory is left for its descriptor a part is refused, and
// the batch's end is a fault.
func (t *mailbox) send(x *execution, d *draft) error {
	x.encoded = wire.AppendResult(x.encoded[:0], &d.result)
	c := shm.Completion{Batch: x.batch.ID, Mailbox: t.index}
	mem, err := t.lane.alloc(x, int64(len(x.encoded)), t.lane.Responses.AllocSmall)
	switch {
	case err == nil:
		copy(mem, x.encoded)
		c.Offset, _ = t.lane.Responses.Offset(mem)
		c.Length = int64(len(mem))
		c.Token = t.lane.keep(mem, d.blocks, d.resident)
		d.resident = d.resident[:0]
	case d.result.More:
		return err
	default:
		x.inst.log.Error("a batch's result had no room in the response memory", "error", err)
		c.NoMemory = true
	}
	_ = t.lane.Lane.Complete(c) // ErrClosed: the gateway has gone
	return nil
}

// end gives back what was allocated and not sent.
func (t *mailbox) end(x *execution) {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	for _, b := range x.blocks {
		t.lane.dropLocked(b)
	}
}

func (*mailbox) keep(*execution) {}

func (t *mailbox) gone() bool { return t.lane.gone.Load() }

func (t *mailbox) forget(_ *execution, blocks []*block) {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	for _, b := range blocks {
		t.lane.dropLocked(b)
	}
}

func (t *mailbox) close() {
	t.box.Close()
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	delete(t.lane.boxes, t.index)
}

// alloc takes memory from the response arena, by one of its ways. While it is full it waits for the
// gateway to give some back, for a bounded time and as long as somebody waits for x. Requests
// that are executed one by one wait once together: what they have is not given back before
// all have ended.
func (l *lane) alloc(x *execution, n int64, from func(int64) ([]byte, error)) ([]byte, error) {
	l.drain()
	mem, err := from(n)
	if err == nil || n > l.Responses.Size() || x.starved && x.window != noWindow {
		return mem, err
	}
	if mem, err = l.await(n, from, x.allCancelled); err != nil {
		x.starved = x.window != noWindow
	}
	return mem, err
}

// await takes memory from the response arena and waits for it a bounded time, unless it is over
// for who wants it.
func (l *lane) await(n int64, from func(int64) ([]byte, error), over func() bool) ([]byte, error) {
	l.drain()
	mem, err := from(n)
	if err == nil || n > l.Responses.Size() {
		return mem, err
	}
	const look = 10 * time.Millisecond
	for end := time.Now().Add(l.wait); err != nil; mem, err = from(n) {
		left := time.Until(end)
		if left <= 0 || over() || l.gone.Load() {
			return nil, err
		}
		if l.Lane.WaitReleased(min(left, look)) {
			l.drain()
		}
	}
	return mem, nil
}

// keep notes what is freed when the gateway gives the token back.
func (l *lane) keep(descriptor []byte, blocks []*block, resident []uint32) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var token uint64
	if last := len(l.spare) - 1; last >= 0 {
		token, l.spare = l.spare[last], l.spare[:last]
	} else {
		token = uint64(len(l.sent))
		l.sent = append(l.sent, sent{})
	}
	s := &l.sent[token]
	s.used, s.memory = true, descriptor
	s.blocks, s.resident = append(s.blocks[:0], blocks...), append(s.resident[:0], resident...)
	for _, b := range blocks {
		b.refs++
	}
	return token
}

// drain frees what the gateway gave back.
func (l *lane) drain() {
	var tokens [64]uint64
	for {
		n := l.Lane.Released(tokens[:])
		if n == 0 {
			return
		}
		l.mu.Lock()
		for _, token := range tokens[:n] {
			l.freeLocked(token)
		}
		dropped := l.dropped
		l.dropped = nil
		l.mu.Unlock()
		for _, slot := range dropped {
			l.regions.Drop(slot)
		}
	}
}

func (l *lane) freeLocked(token uint64) {
	if token >= uint64(len(l.sent)) || !l.sent[token].used {
		return // given back twice; it frees nothing that is not its own
	}
	s := &l.sent[token]
	l.Responses.Free(s.memory)
	for i, b := range s.blocks {
		l.dropLocked(b)
		s.blocks[i] = nil
	}
	l.dropped = append(l.dropped, s.resident...)
	s.used, s.memory, s.blocks, s.resident = false, nil, s.blocks[:0], s.resident[:0]
	l.spare = append(l.spare, token)
}

func (l *lane) dropLocked(b *block) {
	if b.refs--; b.refs == 0 {
		l.Responses.Free(b.mem)
		b.mem = nil
		if len(l.free) < keptBlocks {
			l.free = append(l.free, b)
		}
	}
}

// shut wakes every instance for good: the gateway has gone, or the worker stops.
func (l *lane) shut() {
	l.gone.Store(true)
	l.Lane.Shut()
}
