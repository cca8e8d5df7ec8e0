package sequence

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// beginning is what a limit on callers says of a START. Until the core has the request it is
// its Entry.Group. A START in a living sequence begins no other one, so that the limit counts
// only where none lives.
type beginning struct {
	hold    schedule.SequenceHold // nil: given to a sequence, or given back
	refusal error                 // why no further sequence may begin; nil: it may
}

// begin asks the limits about a START.
func begin(ctx context.Context, limits schedule.SequenceLimits, req *infer.Request) *beginning {
	hold, err := limits.BeginSequence(ctx, req)
	if hold == nil && err == nil {
		return nil
	}
	return &beginning{hold: hold, refusal: err}
}

// end gives back a hold that no sequence has taken.
func (b *beginning) end() {
	if hold := b.hold; hold != nil {
		b.hold = nil
		hold.End()
	}
}

// beginningOf is the beginning of an entry that no core has; nil: nobody counts it.
func beginningOf(e *queue.Entry) *beginning {
	b, _ := e.Group.(*beginning)
	return b
}

// holds are the sequences of a scheduler that limits count. They are kept apart from the core,
// which a panic may end at any point: whatever happens, each hold is given back once.
type holds struct {
	mu  sync.Mutex
	all map[*sequence]schedule.SequenceHold // mu
}

// note is rules.held.
func (h *holds) note(s *sequence, lives bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lives {
		if h.all == nil {
			h.all = map[*sequence]schedule.SequenceHold{}
		}
		h.all[s] = s.hold
		return
	}
	if hold := h.all[s]; hold != nil {
		delete(h.all, s)
		hold.End()
	}
}

// endAll gives everything back: the core that had the sequences is used no more.
func (h *holds) endAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, hold := range h.all {
		delete(h.all, s)
		hold.End()
	}
}

// open makes the sequence that an entry begins. It gets a slot, or waits for one.
func (c *Core) open(k key, e *queue.Entry) *sequence {
	s := &sequence{key: k, instance: -1, row: -1, since: e.At}
	if b := beginningOf(e); b != nil && b.hold != nil {
		s.hold, b.hold = b.hold, nil
		c.held(s, true)
	}
	c.live[k] = s
	c.lost.remove(k)
	c.shares.join(s, c.ownerOf(c.request(e)), e)
	if c.backlog.n > 0 || !c.assign(s) {
		c.backlog.add(s)
		c.shares.wait(s)
	}
	return s
}

// Yields is drive.Core.Yields: what has no slot has begun nothing, so that a sequence of the
// backlog may give way with all its requests.
func (c *Core) Yields(e *queue.Entry) *queue.Entry {
	s := c.shares.yields(c.ownerOf(c.request(e)), max(e.Weight, 1), c.limit)
	if s == nil || s == c.live[c.keyOf(c.request(e))] {
		return nil
	}
	c.rival = s.line.First()
	return c.rival
}

// leaveList takes a sequence out of the backlog, or of the idle ones.
func (c *Core) leaveList(s *sequence) {
	if s.in == &c.backlog {
		c.shares.stop(s)
	}
	s.out()
}

// admitBacklog gives free slots to sequences of the backlog.
func (c *Core) admitBacklog() {
	for s := c.shares.turn(); s != nil && c.assign(s); s = c.shares.turn() {
		c.leaveList(s)
		c.promote(s)
	}
}

// slotless ends the sequence that has waited longest for a slot, if that is too long.
func (c *Core) slotless(now int64) {
	if at := c.slotWake(); at == 0 || at > now {
		return
	}
	c.sweep(now) // a slot may have become free
	s := c.backlog.head
	if at := c.slotWake(); at == 0 || at > now {
		return
	}
	c.leaveList(s)
	c.end(s, infer.Refusef(infer.Unavailable, infer.ReasonSequenceSlots,
		"sequence %s of model '%s' has waited %v for one of %d slots", name(s.key.id), c.model, time.Duration(c.rules.wait),
		c.rules.instances*c.rules.slots))
}

// slotWake is when the sequence that waits longest for a slot has waited too long; 0: never.
func (c *Core) slotWake() int64 {
	if s := c.backlog.head; s != nil && c.rules.wait > 0 {
		return s.since + c.rules.wait
	}
	return 0
}
