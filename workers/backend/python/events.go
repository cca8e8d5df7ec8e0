package python

import (
	"errors"
	"fmt"

	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// Flags of PART.
const (
	partFinal  = 1
	partAnswer = 2
)

// readEvents deals with the frames of ring 3, until the process has ended.
func (r *run) readEvents() {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = true
		r.moved.Broadcast()
	}()
	for {
		f, err := r.events.Next()
		if err == nil {
			err = r.handle(f)
		}
		if err != nil {
			if !errors.Is(err, channel.ErrClosed) {
				r.kill(err)
			}
			return
		}
		r.mu.Lock()
		r.seen++
		r.moved.Broadcast()
		r.mu.Unlock()
	}
}

// waitSeen waits until so many events were dealt with, or none comes any more.
func (r *run) waitSeen(events uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.seen < events && !r.over {
		r.moved.Wait()
	}
}

// handle deals with an event. It must not wait for the instance's goroutine, nor for room in ring 1. An error has the
// process killed. The body is valid until it returns.
func (r *run) handle(f channel.Frame) error {
	d := channel.NewDecoder(f.Body, r.model().names)
	switch f.Kind {
	case channel.Part:
		return r.part(&d)
	case channel.Drop:
		return r.drop(&d)
	case channel.Need:
		return r.need(f.ID, &d)
	case channel.Give:
		s := d.Segment()
		if d.Err() == nil && !r.channel.Exchange.FreeAnswered(s) {
			return fmt.Errorf("%w: it gave back %d bytes at %d, which it did not have", channel.ErrCorrupt,
				s.Length, s.Offset)
		}
		r.calls.given(s.Offset)
		return d.Err()
	}
	if f.Kind == channel.Readiness {
		return r.readiness.said(r, f.ID, &d)
	}
	return r.further(f)
}

// part is an answer by a sender.
func (r *run) part(d *channel.Decoder) error {
	key, flags := d.U64(), d.U8()
	r.answer.Outputs = r.answer.Outputs[:0]
	if flags&partAnswer != 0 {
		d.Response(&r.answer)
	}
	if d.Err() != nil {
		return d.Err()
	}
	q := r.slots.find(key)
	if q == nil {
		r.late(key)
		r.used(&r.answer)
		return nil
	}
	x := q.batch
	x.mu.Lock()
	defer x.mu.Unlock()
	if q.key != key || q.closed {
		r.late(key)
		r.used(&r.answer)
		return nil
	}
	if x.open == nil {
		x.early = append(x.early, early{request: q, flags: flags, answer: r.answer.Clone()})
		return nil
	}
	err := x.deliver(q, flags, &r.answer)
	r.used(&r.answer)
	return r.answered(err)
}

// drop is the word that nobody will answer a request.
func (r *run) drop(d *channel.Decoder) error {
	key := d.U64()
	if d.Err() != nil {
		return d.Err()
	}
	q := r.slots.find(key)
	if q == nil {
		return nil
	}
	x := q.batch
	x.mu.Lock()
	defer x.mu.Unlock()
	if q.key != key || q.closed {
		return nil
	}
	if x.open == nil {
		x.early = append(x.early, early{request: q, flags: partDrop})
		return nil
	}
	err := x.fail(q, noAnswer())
	x.close(q)
	return r.answered(err)
}

// partDrop stands for DROP among the answers that came early.
const partDrop = 128

// answered is what becomes of an error of the worker's: it has logged what it is.
func (r *run) answered(err error) error {
	if err != nil {
		r.log.Warn("an answer could not be given", "error", err)
	}
	return nil
}

// late notes that something came for a request that has ended.
func (r *run) late(key uint64) {
	r.mu.Lock()
	first := !r.said
	r.said = true
	r.mu.Unlock()
	if first {
		r.log.Warn("the model answered a request that had ended", "key", key)
	}
}

// used gives back the memory of an answer.
func (r *run) used(a *channel.Response) {
	for i := range a.Outputs {
		if s := a.Outputs[i].Segment; s.Area == channel.InOurs {
			r.channel.Exchange.FreeAnswered(s)
		}
	}
}

// need gives the process memory.
func (r *run) need(id uint64, d *channel.Decoder) error {
	n := d.U64()
	d.U8()
	if d.Err() != nil {
		return d.Err()
	}
	var e channel.Encoder
	s, _, err := r.channel.Exchange.Alloc(int64(min(n, 1<<62)), true)
	if err != nil {
		e.U8(0)
		e.String(err.Error())
	} else {
		e.U8(1)
		e.Segment(s)
	}
	return r.replySoon(id, e.Body())
}
