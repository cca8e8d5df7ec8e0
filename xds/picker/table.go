package picker

import (
	"container/list"
	"time"
)

// sequence is one that is going on somewhere, or was when its gateway died.
type sequence struct {
	key   sequenceKey
	owner *gateway // nil: lost
	was   string   // the owner's name
	lost  bool
	at    time.Duration // of its last call
	in    *list.Element
}

// lose notes that the sequence has ended with its gateway.
func (q *sequence) lose() {
	delete(q.owner.owned, q)
	q.lost, q.owner = true, nil
}

type sequenceKey struct{ model, id string }

// table knows the sequences, those that were idle longest first.
type table struct {
	idle  time.Duration
	most  int
	all   map[sequenceKey]*sequence
	order list.List // of *sequence
}

func newTable(r Rules) table {
	return table{idle: r.Idle, most: r.Sequences, all: map[sequenceKey]*sequence{}}
}

// get finds the call's sequence, and counts the call; nil: not known.
func (t *table) get(c *Call, now time.Duration) *sequence {
	q := t.all[sequenceKey{c.Model, c.Sequence}]
	if q != nil {
		q.at = now
		t.order.MoveToBack(q.in)
	}
	return q
}

// put makes owner that of the call's sequence.
func (t *table) put(c *Call, owner *gateway, now time.Duration) {
	if q := t.all[sequenceKey{c.Model, c.Sequence}]; q != nil {
		t.remove(q)
	}
	if len(t.all) >= t.most {
		t.remove(t.order.Front().Value.(*sequence))
	}
	q := &sequence{key: sequenceKey{c.Model, c.Sequence}, owner: owner, was: owner.name, at: now}
	q.in = t.order.PushBack(q)
	t.all[q.key] = q
	owner.owned[q] = true
}

func (t *table) remove(q *sequence) {
	if q.owner != nil {
		delete(q.owner.owned, q)
	}
	t.order.Remove(q.in)
	delete(t.all, q.key)
}

// expire forgets what was idle for too long.
func (t *table) expire(now time.Duration) {
	for e := t.order.Front(); e != nil; e = t.order.Front() {
		q := e.Value.(*sequence)
		if now-q.at <= t.idle {
			return
		}
		t.remove(q)
	}
}
