package client

import (
	"context"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// What one process of this host answers is another's input without a copy: the memory that the first
// answers into is a region of the second, opened when a batch names it for the first time, which
// is copied. The second can't write it.

// answerMemory is the memory that a session's worker answers into, as other workers know it.
type answerMemory struct {
	base, end uintptr // its addresses here
	region    *openRegion
}

// answerSlots are the slots of such regions: the last ones, which clients' memory never has.
type answerSlots struct {
	mu   sync.Mutex
	used [infer.AnswerRegions]bool // guarded by mu
}

// take gives a slot; 0: all are used.
func (a *answerSlots) take() uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.used {
		if !a.used[i] {
			a.used[i] = true
			return uint32(infer.MaxRegions - i)
		}
	}
	return 0
}

func (a *answerSlots) give(slot uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[infer.MaxRegions-slot] = false
}

// next is the serial of a region that is not in the table.
func (t *regionTable) next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial++
	return t.serial
}

// showAnswers lets other workers read what the session's worker answers.
func (w *worker) showAnswers(s *session) {
	if s.memory == nil {
		return
	}
	arena := s.memory.responses
	mem, err := arena.View(0, arena.Size())
	if err != nil || len(mem) == 0 {
		return
	}
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", arena.FD())) // a read-only one
	if err != nil {
		w.log.Warn("what this worker answers is copied for others", "error", err)
		return
	}
	slot := w.owner.slots.take()
	if slot == 0 {
		w.log.Warn("what this worker answers is copied for others: there are too many workers", "error", file.Close())
		return
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	r := &infer.Region{Slot: slot, Name: "answers of " + w.name, Size: arena.Size(), File: file}
	w.shown.Store(&answerMemory{base: base, end: base + uintptr(len(mem)), region: &openRegion{r, w.owner.regions.next()}})
}

// hideAnswers makes all others forget that memory, however long they still read it.
func (w *worker) hideAnswers(ctx context.Context) {
	a := w.shown.Swap(nil)
	if a == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	w.owner.forgetting.Go(func() {
		var others sync.WaitGroup
		for _, k := range w.owner.all() {
			if k == w {
				continue
			}
			others.Go(func() {
				if err := k.forget(ctx, a.region); err != nil {
					k.log.Error("memory of another worker is still open", "memory", a.region.Name, "error", err)
				}
			})
		}
		others.Wait()
		if err := a.region.File.Close(); err != nil {
			w.log.Error("the memory of answers was not closed", "error", err)
		}
		w.owner.slots.give(a.region.Slot)
	})
}

// answersAt is the memory of answers that b lies in, and where; nil: it is in none.
func (w *Workers) answersAt(b []byte) (*openRegion, int64) {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, k := range w.all() {
		if a := k.shown.Load(); a != nil && p >= a.base && p+uintptr(len(b)) <= a.end {
			return a.region, int64(p - a.base)
		}
	}
	return nil, 0
}

// openPeers opens the memory that batches of the session have named, until ctx ends.
func (w *worker) openPeers(ctx context.Context, s *session) {
	for {
		var o *openRegion
		select {
		case <-ctx.Done():
			return
		case o = <-s.peers.wanted:
		}
		err := w.withRegions(ctx, func(now *session) error {
			if now != s || !w.owner.shows(o) {
				return nil
			}
			limited, stop := context.WithTimeout(ctx, forgetTime)
			defer stop()
			return s.openRegion(limited, o, false)
		})
		if err != nil && ctx.Err() == nil {
			w.log.Warn("another worker's answers are copied for this one", "memory", o.Name, "error", err)
		}
	}
}

// shows says that memory of answers is still a worker's.
func (w *Workers) shows(o *openRegion) bool {
	for _, k := range w.all() {
		if a := k.shown.Load(); a != nil && a.region == o {
			return true
		}
	}
	return false
}

// peers is how a session's batches name what other workers have answered.
type peers struct {
	workers *Workers
	opened  *regionSet
	wanted  chan *openRegion
}

func newPeers(w *Workers, s *session) *peers {
	return &peers{workers: w, opened: &s.regions, wanted: make(chan *openRegion, 16)}
}

// name is a segment of an input in another worker's memory; false: it must be copied. Workers read floats alone
// where they lie in memory that others write, and a segment there is all of a request's tensor.
func (p *peers) name(b *infer.Batch, in *infer.BatchInput, i int) (wire.Segment, bool) {
	s := in.Segments[i]
	if p == nil || len(s) < nameFrom || !in.Datatype.IsFloat() || !ofOneRequest(b, in, i) {
		return wire.Segment{}, false
	}
	o, off := p.workers.answersAt(s)
	if o == nil {
		return wire.Segment{}, false
	}
	if p.opened.serial(o.Slot) != o.serial {
		select {
		case p.wanted <- o:
		default: // others are asked for; a later batch asks again
		}
		return wire.Segment{}, false
	}
	return wire.InRegion(o.Slot, off, int64(len(s))), true
}

// ofOneRequest says that segment i of an input is all of one request's tensor.
func ofOneRequest(b *infer.Batch, in *infer.BatchInput, i int) bool {
	if len(in.Segments) == 1 && len(b.Requests) == 1 {
		return true
	}
	if in.Layout != infer.ByRow || b.Rows <= 0 || len(in.Segments) != len(b.Requests) || len(in.Shape) == 0 ||
		in.Shape[0] != int64(b.Rows) {
		return false
	}
	row, err := infer.ByteSize(in.Datatype, in.Shape[1:])
	return err == nil && int64(len(in.Segments[i])) == row*int64(b.Requests[i].Rows)
}
