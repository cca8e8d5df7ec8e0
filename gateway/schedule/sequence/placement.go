package sequence

import (
	"sync"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// placementOf is what the picker of a mesh said of a request's sequence; ok is false where no
// picker says where sequences live. A step of an ensemble goes by the ensemble's call.
func (c *Core) placementOf(r *infer.Request) (p infer.Placement, ok bool) {
	if c.iterative || r.Origin == nil || r.Origin.Placement == nil {
		return infer.Placement{}, false
	}
	return r.Origin.Placement.Of(r), true
}

// admitPlaced refuses a request that may not begin or continue a sequence here, by what the
// picker said of it: s is the living sequence of its ID, or nil. A request goes on with s
// only if no newer START of the ID is known anywhere, which the epochs tell.
func (c *Core) admitPlaced(r *infer.Request, s *sequence, p *infer.Placement) error {
	id := name(r.Correlation)
	switch {
	case p.Key == "":
		return infer.Refusef(infer.Unavailable, infer.ReasonUnplaced,
			"nothing says where sequence %s of model '%s' lives: the endpoint picker did not answer; try again", id, c.model)
	case r.SequenceStart:
		return nil
	case s == nil && (p.Unknown || p.Stream != 0):
		return c.errNoStart(r)
	case p.Stream != 0 && s.stream != p.Stream:
		return infer.Refusef(infer.Unavailable, infer.ReasonSequenceLost,
			"sequence %s of model '%s' was not begun in this stream: begin a new sequence with the START flag", id, c.model)
	case s == nil || s.placed.Epoch < p.Epoch:
		return infer.Refusef(infer.Unavailable, infer.ReasonSequenceLost,
			"sequence %s of model '%s' has ended here: begin a new sequence with the START flag", id, c.model)
	}
	return nil
}

// errNoStart refuses a request that begins no sequence and belongs to none.
// Source: SequenceBatchScheduler::Enqueue of Triton.
func (c *Core) errNoStart(r *infer.Request) error {
	return infer.Errorf(infer.InvalidArg,
		"inference request for sequence %s to model '%s' must specify the START flag on the first request of the sequence",
		name(r.Correlation), c.model)
}

// place notes with which START a sequence has begun, also anew.
func (c *Core) place(s *sequence, r *infer.Request) {
	if !r.SequenceStart || c.placed == nil {
		return
	}
	p, ok := c.placementOf(r)
	if !ok {
		c.unplace(s, false) // who begins it past the mesh takes it away from callers there
		return
	}
	if s.placed.Key != p.Key {
		c.unplace(s, false)
	}
	// An older START that comes late begins it anew all the same, for callers of both.
	s.placed = infer.PlacedSequence{Key: p.Key, Epoch: max(p.Epoch, s.placed.Epoch)}
	s.stream = p.Stream
	c.placed.begin(s.placed)
}

// unplace notes that a sequence has ended, as far as callers in the mesh go. lost says that
// it was not its callers' doing.
func (c *Core) unplace(s *sequence, lost bool) {
	if s.placed.Key != "" {
		c.placed.end(s.placed, lost)
		s.placed = infer.PlacedSequence{}
	}
}

// placed are the sequences of a scheduler that a picker has placed. They are kept apart from
// the core, which a panic may end at any point: whatever happens, each end is told.
type placed struct {
	to  schedule.Placements // nil: nobody is told
	mu  sync.Mutex
	all map[infer.PlacedSequence]struct{} // mu
}

func (p *placed) begin(s infer.PlacedSequence) {
	if p.to == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[infer.PlacedSequence]struct{}{}
	}
	p.all[s] = struct{}{}
	p.to.Began(s)
}

func (p *placed) end(s infer.PlacedSequence, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, lives := p.all[s]; lives {
		delete(p.all, s)
		p.to.Ended(s, lost)
	}
}

// endAll ends all: the core that had the sequences is used no more.
func (p *placed) endAll(lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.all {
		delete(p.all, s)
		p.to.Ended(s, lost)
	}
}
