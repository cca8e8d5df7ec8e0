package client

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// firstBlock is the memory an instance has for descriptors at first; larger ones take more, of
// which it keeps keptBlock at most: a request may say as much about itself as its body is long.
const (
	firstBlock = 2048
	keptBlock  = 256 << 10
)

// maxDescriptor bounds a result's descriptor, which is copied before it is read.
const maxDescriptor = 16 << 20

// peerMemory is what a local worker wrote its results into. It stays mapped until
// nothing reads them any more, also when the worker is long dead.
type peerMemory struct {
	responses *shm.Arena
	lane      *shm.Lane
	log       *slog.Logger
	refs      atomic.Int64  // the session's, and one for each result that is held
	held      atomic.Int64  // bytes of tensors of these results
	refused   infer.Refusal // of memory for a result, by the worker
	session   *session      // whose worker's it is; set before results come
}

// release gives back a result. The last one of a session that has ended unmaps the memory on a
// goroutine: whoever has written the answer serves others.
func (m *peerMemory) release(token uint64) {
	m.lane.Release(token)
	if m.refs.Add(-1) == 0 {
		go m.close()
	}
}

// drop gives back the session's own reference.
func (m *peerMemory) drop() {
	if m.refs.Add(-1) == 0 {
		m.close()
	}
}

func (m *peerMemory) close() {
	if err := errors.Join(m.responses.Close(), m.lane.Close()); err != nil {
		m.log.Error("memory of a worker was not given back", "error", err)
	}
}

// scarce says that half of it is held, or that the worker had none for a result lately.
func (m *peerMemory) scarce() bool {
	return m.held.Load() >= m.responses.Size()/2 || m.refused.Recent()
}

func (m *peerMemory) view(s wire.Segment) ([]byte, error) {
	return m.responses.View(s.Offset, s.Length)
}

// laneLink is the link to a local worker through shared memory.
type laneLink struct {
	arena  *shm.Arena // of requests
	memory *peerMemory
	peers  *peers                     // nil: what others have answered is copied
	boxes  []atomic.Pointer[executor] // by mailbox
	calls  *laneCalls                 // nil: its models make none
}

func newLaneLink(arena *shm.Arena, m *peerMemory) *laneLink {
	return &laneLink{arena: arena, memory: m, boxes: make([]atomic.Pointer[executor], m.lane.Mailboxes())}
}

func (l *laneLink) post(e *executor) error {
	for i := range e.current.Inputs {
		if err := l.place(e, &e.current.Inputs[i], &e.batch.Inputs[i]); err != nil {
			return err
		}
	}
	n, err := l.encode(e)
	if err != nil {
		return err
	}
	off, _ := l.arena.Offset(e.block)
	l.boxes[e.box].Store(e)
	l.memory.lane.Post(e.box, off, n)
	return nil
}

// place names an input's segments, after copying those that lie elsewhere.
func (l *laneLink) place(e *executor, in *infer.BatchInput, d *wire.Input) error {
	for i, s := range in.Segments {
		if in.Places != nil && !in.Places[i].IsZero() {
			s, err := l.segmentOf(in.Places[i])
			if err != nil {
				return err
			}
			d.Segments = append(d.Segments, s)
			continue
		}
		off, ok := l.arena.Offset(s)
		if !ok && len(s) > 0 {
			if off, ok = l.memory.responses.Offset(s); ok {
				off |= wire.InAnswers
			}
		}
		if !ok && len(s) > 0 {
			if named, ok := l.peers.name(e.current, in, i); ok {
				d.Segments = append(d.Segments, named)
				continue
			}
			c, err := l.arena.Alloc(int64(len(s)))
			if err != nil {
				return err
			}
			copy(c, s)
			e.copies = append(e.copies, c)
			off, _ = l.arena.Offset(c)
		}
		d.Segments = append(d.Segments, wire.Segment{Offset: off, Length: int64(len(s))})
	}
	return nil
}

// segmentOf names a place for this worker.
func (l *laneLink) segmentOf(p infer.Place) (wire.Segment, error) {
	if p.IsResident() {
		return l.memory.session.resident.segment(l.memory.session, p)
	}
	return segmentOf(p), nil
}

// encode writes the descriptor and cleared cancel flags into e.block, and returns the
// descriptor's length.
func (l *laneLink) encode(e *executor) (int64, error) {
	if e.block == nil {
		block, err := l.arena.AllocSmall(firstBlock)
		if err != nil {
			return 0, err
		}
		e.block = block
	}
	flags := wire.FlagsSize(len(e.batch.Requests))
	d := wire.AppendBatch(e.block[:0], &e.batch)
	n := int64(len(d))
	at := wire.FlagsOffset(n)
	if at+flags > int64(len(e.block)) {
		block, err := l.arena.AllocSmall(2 * (at + flags))
		if err != nil {
			return 0, err
		}
		copy(block, d)
		l.arena.Free(e.block)
		e.block = block
	}
	e.flags = unsafe.Slice((*uint32)(unsafe.Pointer(&e.block[at])), len(e.batch.Requests))
	for i := range e.flags {
		atomic.StoreUint32(&e.flags[i], 0)
	}
	return n, nil
}

func (l *laneLink) cancel(_ uint64, flags []uint32, i int) { atomic.StoreUint32(&flags[i], 1) }

func (*laneLink) forget(uint64) {}

// run reads completions until the lane is shut, after those that are in it, or the
// worker breaks it.
func (l *laneLink) run() error {
	var buf [64]shm.Completion
	for {
		n, err := l.memory.lane.Completions(buf[:], 0)
		if errors.Is(err, shm.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range buf[:n] {
			if _, err := l.complete(&buf[i]); err != nil {
				return err
			}
		}
	}
}

// laneSource is a lane whose results a loop reads, in place of run.
type laneSource struct {
	*laneLink
	ears  Ears
	ended func(err error)
	buf   [64]shm.Completion
}

// Ready is loop.Source's.
func (s *laneSource) Ready() bool { return s.memory.lane.Arm() }

// Run is loop.Source's: it delivers what there is.
func (s *laneSource) Run() (more, woke bool) {
	n, err := s.memory.lane.Poll(s.buf[:])
	for i := 0; i < n && err == nil; i++ {
		var told bool
		told, err = s.deliver(&s.buf[i])
		woke = woke || told
	}
	if err == nil {
		return true, woke
	}
	if errors.Is(err, shm.ErrClosed) {
		err = nil
	}
	s.ears.Detach(s.memory.lane.Bell())
	s.ended(err)
	return false, true
}

// deliver is complete, of which a panic ends the session: the loop goes on, and neither the
// results behind this one nor the batch that it was for may be waited for without end.
func (s *laneSource) deliver(c *shm.Completion) (woke bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a fault while a result was delivered: %v\n%s", p, debug.Stack())
		}
	}()
	return s.complete(c)
}

// complete delivers one result; woke is its batch's. An error says what the worker did
// wrong.
func (l *laneLink) complete(c *shm.Completion) (woke bool, err error) {
	if c.Kind != shm.Resulted {
		return false, l.calls.complete(c)
	}
	e := l.boxes[c.Mailbox].Load()
	if e == nil {
		return false, fmt.Errorf("a result came from mailbox %d, which has no instance", c.Mailbox)
	}
	b, done, o := e.find(c.Batch)
	if b == nil {
		return false, fmt.Errorf("a result came for batch %d, which mailbox %d does not have", c.Batch, c.Mailbox)
	}
	if c.NoMemory {
		l.memory.refused.Note()
		err := infer.Refusef(infer.Unavailable, infer.ReasonMemory, "the worker had no memory left for the result")
		return e.finish(b, &infer.Result{Err: err}), nil
	}
	r, err := l.receive(e, c, b, done, o)
	if err != nil {
		return false, err
	}
	if r.result.More {
		return e.part(b, o, &r.result)
	}
	return e.finish(b, &r.result), nil
}

func (l *laneLink) receive(e *executor, c *shm.Completion, b *infer.Batch, done *answered, o *open) (*received, error) {
	if c.Length > maxDescriptor {
		return nil, fmt.Errorf("a result's descriptor has %d bytes, the most is %d", c.Length, maxDescriptor)
	}
	src, err := l.memory.responses.View(c.Offset, c.Length)
	if err != nil {
		return nil, err
	}
	e.raw = append(e.raw[:0], src...) // it must not change while it is checked
	if err := wire.DecodeResult(e.raw, &e.result); err != nil {
		return nil, err
	}
	if e.result.ID != c.Batch {
		return nil, fmt.Errorf("the result of batch %d came for batch %d", e.result.ID, c.Batch)
	}
	if err := e.check(b, done, o); err != nil {
		return nil, err
	}
	e.endAnswered(&e.result)
	r := &received{memory: l.memory, token: c.Token}
	if err := r.setResult(&e.result, b, l.memory); err != nil {
		r.releasePassed()
		return nil, err
	}
	if !r.hasData() {
		l.memory.lane.Release(c.Token)
		return r, nil
	}
	l.memory.refs.Add(1)
	l.memory.held.Add(r.size)
	r.buffer.Reset(nil, freeReceived)
	r.result.Memory = &r.buffer
	return r, nil
}
