package sequence

import (
	"math"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// rules are a Core's settings.
type rules struct {
	model     string
	instances int
	slots     int   // of each instance
	limit     int   // waiting requests
	idle      int64 // longest time without a request; 0: for ever
	wait      int64 // longest time without a slot; 0: for ever
	iterative bool
	scope     infer.SequenceScope
	// durable says that sequences outlive their worker: their state is in the gateway.
	durable bool
	// Of the direct strategy: while fewer than this share of the slots have a request, a
	// batch waits for delay.
	utilization float64
	delay       int64
	cutters     []queue.Cutter // of the oldest strategy, one for each instance; nil: direct
	null        *queue.Entry   // fills empty slots of the direct strategy
	request     func(*queue.Entry) *infer.Request
	// stateKey appends to a key what of a sequence's states must be equal in a batch; nil:
	// nothing.
	stateKey func(key []byte, s *sequence, start bool) []byte
	drop     func(*sequence) // forgets the states of a sequence; nil: there are none
	// held notes a sequence that a limit counts, and that it is over; nil: none is.
	held func(s *sequence, lives bool)
	// placed are the sequences that a mesh's picker placed; nil: nobody is told.
	placed *placed
}

// Core is the state machine; drive.Core says what its methods do.
type Core struct {
	queue.Instances
	rules

	live      map[key]*sequence
	slots     [][]*sequence // by instance and row
	free      int           // slots without sequence
	low       int           // no row below it has a free slot
	backlog   list          // in order of arrival
	shares    shares
	idle      list // nothing waits and nothing is in a batch; the first is idle longest
	touched   []*sequence
	heads     []queue.Strand // oldest: the next requests of the candidates, by instance
	deadlines queue.Deadlines
	doomed    queue.Strand // their sequences ended under them
	lost      lost
	rival     *queue.Entry // gives way if it is removed next; nil: none does
	nextID    uint64       // of iterative sequences that have none
	waiting   int
	hold      int64
	flush     bool
}

var _ drive.Core = (*Core)(nil)

func newCore(r rules) *Core {
	c := &Core{rules: r, Instances: queue.NewInstances(r.instances), live: map[key]*sequence{},
		slots: make([][]*sequence, r.instances), free: r.instances * r.slots}
	for i := range c.slots {
		c.slots[i] = make([]*sequence, r.slots)
	}
	if r.cutters != nil {
		c.heads = make([]queue.Strand, r.instances)
	}
	return c
}

func of(e *queue.Entry) *sequence { return e.Group.(*sequence) }

// Full is drive.Core.Full: all waiting requests of all sequences count.
func (c *Core) Full(*queue.Entry) bool {
	c.rival = nil
	return c.waiting >= c.limit
}

// Admit is drive.Core.Admit: a request that begins no sequence must belong to one.
// Source: SequenceBatchScheduler::Enqueue of the original.
func (c *Core) Admit(e *queue.Entry) error {
	r := c.request(e)
	if c.iterative && r.Correlation.IsZero() {
		return nil
	}
	s := c.live[c.keyOf(r)]
	if err := c.admitLost(e, s); err != nil {
		return err
	}
	if p, ok := c.placementOf(r); ok {
		if err := c.admitPlaced(r, s, &p); err != nil {
			return err
		}
	}
	switch {
	case s == nil && !r.SequenceStart:
		return c.errNoStart(r)
	case s != nil && c.iterative:
		return infer.Errorf(infer.AlreadyExists, "inference request for sequence %s conflicts with in-flight sequence for model '%s'",
			name(r.Correlation), c.model)
	case s == nil:
		if b := beginningOf(e); b != nil {
			return b.refusal
		}
	}
	return nil
}

func name(id infer.Correlation) string {
	if id.Str != "" {
		return id.Str
	}
	return strconv.FormatUint(id.ID, 10)
}

// Verdict is drive.Core.Verdict.
func (c *Core) Verdict(e *queue.Entry) error { return of(e).fate }

// Add is drive.Core.Add.
func (c *Core) Add(e *queue.Entry) {
	r := c.request(e)
	if c.iterative && r.Correlation.IsZero() {
		c.number(r)
	}
	k := c.keyOf(r)
	s := c.live[k]
	if s == nil {
		s = c.open(k, e)
	} else if b := beginningOf(e); b != nil {
		b.end()
	}
	if s.in == &c.idle {
		s.out()
	}
	c.place(s, r)
	e.Group = s
	s.line.Append(e)
	c.waiting++
	s.sharer.requests++
	c.deadlines.Watch(e)
	c.promote(s)
	if r.SequenceEnd && !c.iterative {
		c.forget(s)
	}
}

// keyOf is the key of a request's sequence. An iterative request is a whole sequence, which
// nobody else can continue: IDs of two that run at a time differ, whoever has them, since
// backends tell them apart by the ID alone.
func (c *Core) keyOf(r *infer.Request) key {
	if c.iterative {
		return key{id: r.Correlation}
	}
	return key{scope: c.scope.Of(r.Tenant, r.Caller), id: r.Correlation}
}

// number gives an iterative sequence an ID and makes its request the first one.
func (c *Core) number(r *infer.Request) {
	for r.Correlation.IsZero() || c.live[c.keyOf(r)] != nil {
		c.nextID++
		r.Correlation.ID = c.nextID
	}
	r.SequenceStart = true
}

// forget frees the ID; what waits still goes its way.
func (c *Core) forget(s *sequence) {
	s.ended = true
	c.unplace(s, false)
	if c.live[s.key] == s {
		delete(c.live, s.key)
	}
}

// end ends a sequence early: what waits is doomed, and hears why it first ended.
func (c *Core) end(s *sequence, fate error) {
	c.forget(s)
	if s.fate == nil {
		s.fate = fate
	}
	for e := s.pull(c); e != nil; e = s.pull(c) {
		c.deadlines.Forget(e)
		c.doomed.Append(e)
		s.sharer.requests--
	}
	c.touch(s)
}

// pull takes the first waiting request out of its strand.
func (s *sequence) pull(c *Core) *queue.Entry {
	if e := s.head; e != nil {
		c.heads[s.instance].Remove(e)
		s.head = nil
		return e
	}
	e := s.line.First()
	if e != nil {
		s.line.Remove(e)
	}
	return e
}

// touch has Next look whether a sequence is over or idle.
func (c *Core) touch(s *sequence) {
	if !s.touched {
		s.touched = true
		c.touched = append(c.touched, s)
	}
}

// Remove is drive.Core.Remove: a caller left or gives way, and with it its sequence ends, as
// in Triton.
func (c *Core) Remove(e *queue.Entry) {
	s := of(e)
	c.take(e)
	if e == c.rival {
		c.end(s, infer.Refusef(infer.Unavailable, infer.ReasonFairShare,
			"sequence %s of model '%s' gave way to a caller with fewer requests waiting", name(s.key.id), c.model))
		return
	}
	c.end(s, infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "sequence %s of model '%s' has ended: one of its requests was cancelled",
		name(s.key.id), c.model))
}

// take takes a waiting entry out of wherever it stands.
func (c *Core) take(e *queue.Entry) {
	s := of(e)
	switch {
	case s.head == e:
		c.heads[s.instance].Remove(e)
		s.head = nil
		s.sharer.requests--
	case s.fate != nil:
		c.doomed.Remove(e)
	default:
		s.line.Remove(e)
		s.sharer.requests--
	}
	c.deadlines.Forget(e)
	c.waiting--
}

// Expire is drive.Core.Expire: with a request that waited too long its sequence ends, and so
// does a sequence that waited too long for a slot.
func (c *Core) Expire(now int64) *queue.Entry {
	if c.doomed.Len() == 0 {
		c.slotless(now)
	}
	if e := c.doomed.First(); e != nil {
		c.take(e)
		return e
	}
	e := c.deadlines.First()
	if e == nil || e.Deadline > now {
		return nil
	}
	c.take(e)
	// Source: the text of the original's sequence_batch_scheduler.cc.
	c.end(of(e), infer.Refusef(infer.Unavailable, infer.ReasonQueueTimeout, "timeout of the corresponding sequence has been expired"))
	return e
}

// Any is drive.Core.Any.
func (c *Core) Any() *queue.Entry {
	if e := c.doomed.First(); e != nil {
		c.take(e)
		return e
	}
	for _, row := range c.slots {
		for _, s := range row {
			if e := c.first(s); e != nil {
				return e
			}
		}
	}
	for s := c.backlog.head; s != nil; s = s.next {
		if e := c.first(s); e != nil {
			return e
		}
	}
	return nil
}

func (c *Core) first(s *sequence) *queue.Entry {
	if s == nil || !s.waiting() {
		return nil
	}
	e := s.head
	if e == nil {
		e = s.line.First()
	}
	c.take(e)
	c.touch(s)
	return e
}

// Next is drive.Core.Next.
func (c *Core) Next(now int64, batch []*queue.Entry) ([]*queue.Entry, int) {
	c.sweep(now)
	c.hold = 0
	if c.waiting == 0 {
		return batch, -1
	}
	if c.flush {
		now = math.MaxInt64
	}
	for i := range c.slots {
		if !c.Can(i) {
			continue
		}
		n := len(batch)
		if c.heads != nil {
			batch = c.oldest(i, now, batch)
		} else {
			batch = c.direct(i, now, batch)
		}
		if len(batch) > n {
			c.Instances.Take(i)
			return batch, i
		}
	}
	return batch, -1
}

// wait notes when to be asked again.
func (c *Core) wait(until int64) {
	if until != 0 && (c.hold == 0 || until < c.hold) {
		c.hold = until
	}
}

// start moves a waiting request to a batch.
func (c *Core) start(e *queue.Entry) {
	c.take(e)
	s := of(e)
	s.busy = e
	if s.keyed == e {
		e.Key, s.keyed = e.Key[:s.keyLen], nil
	}
}

// Idle is drive.Core.Idle.
func (c *Core) Idle() bool { return c.waiting == 0 && c.Free() >= 0 }

// Wake is drive.Core.Wake.
func (c *Core) Wake() int64 {
	if c.doomed.Len() > 0 {
		return 1 // at once
	}
	at := c.hold
	if e := c.deadlines.First(); e != nil && (at == 0 || e.Deadline < at) {
		at = e.Deadline
	}
	if slot := c.slotWake(); slot != 0 && (at == 0 || slot < at) {
		at = slot
	}
	if s := c.idle.head; s != nil && c.rules.idle > 0 && (at == 0 || s.since+c.rules.idle < at) {
		at = s.since + c.rules.idle
	}
	return at
}

// Done is drive.Core.Done.
func (c *Core) Done(i int, batch []*queue.Entry) {
	c.Instances.Done(i)
	c.settle(batch)
}

func (c *Core) settle(batch []*queue.Entry) {
	for _, e := range batch {
		if e == c.null {
			continue
		}
		s := of(e)
		s.busy = nil
		if c.iterative {
			c.forget(s) // unless Repeat comes
		}
		c.touch(s)
	}
}

// Lost is drive.Core.Lost. What waits of sequences whose state was the worker's is doomed.
func (c *Core) Lost(i int, life uint64, batch []*queue.Entry) {
	c.Instances.Lost(i, life)
	c.settle(batch)
	c.wipe(i)
}

// Down is drive.Core.Down.
func (c *Core) Down(i int) {
	c.Instances.Down(i)
	c.wipe(i)
}

// wipe ends the sequences that an instance had when its worker ended, unless their
// state is in the gateway.
func (c *Core) wipe(i int) {
	if c.durable {
		return
	}
	for _, s := range c.slots[i] {
		if s != nil && s.fate == nil {
			c.noteLost(s)
			c.unplace(s, true)
			c.end(s, c.fateOfLost(s))
		}
	}
}

// Again is drive.Core.Again: the request goes before all others of its sequence.
func (c *Core) Again(e *queue.Entry) bool {
	e.Losses++
	return e.Losses <= 1 && c.back(e)
}

// Repeat is drive.Core.Repeat. An iterative request is the first of its sequence only
// once.
func (c *Core) Repeat(e *queue.Entry) bool {
	if !c.iterative {
		return false
	}
	c.request(e).SequenceStart = false
	return c.back(e)
}

// back puts a request that was in a batch in front of what waits of its sequence.
func (c *Core) back(e *queue.Entry) bool {
	s := of(e)
	if s.fate != nil {
		return false
	}
	if c.iterative {
		if other := c.live[s.key]; other != nil && other != s {
			return false
		}
		s.ended = false
		c.live[s.key] = s
	}
	s.line.Prepend(e)
	c.waiting++
	s.sharer.requests++
	c.deadlines.Watch(e)
	c.touch(s)
	return true
}

// Flush is drive.Core.Flush. Sequences that have nothing to do will never have, so the
// backlog gets their slots.
func (c *Core) Flush() {
	c.flush = true
	for s := c.idle.head; s != nil; s = c.idle.head {
		c.forget(s)
		c.release(s)
	}
}

// Pending is drive.Core.Pending.
func (c *Core) Pending() int { return c.waiting }

// limit is the bound of all waiting requests of a model.
const limit = schedule.DefaultMaxQueueSize
