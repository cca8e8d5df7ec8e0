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
	epoch uint64 // of its START
	// newest says that no gateway can have a newer one: its START came by here, or was told
	// when it happened.
	newest bool
	told   bool          // the owner has told of it,
	number uint64        // and over which connection
	at     time.Duration // of its last call
	in     *list.Element
}

// lose notes that the sequence has ended with its gateway.
func (q *sequence) lose() {
	delete(q.owner.owned, q)
	q.lost, q.owner = true, nil
}

// sequenceKey tells sequences apart as gateways do.
type sequenceKey struct {
	scope string
	sharedKey
}

// sharedKey is what sequences of several scopes may have in common.
type sharedKey struct{ model, version, id string }

func keyOf(c *Call) sequenceKey {
	return sequenceKey{c.Scope, sharedKey{c.Model, c.Version, c.Sequence}}
}

// table knows the sequences, those that were idle longest first.
type table struct {
	idle time.Duration
	most int
	all  map[sequenceKey]*sequence
	// newest are those that began last of loose calls: where their sequence may be whose
	// caller shows other credentials by now.
	newest map[sharedKey]*sequence
	order  list.List // of *sequence
}

func newTable(r Rules) table {
	return table{idle: r.Idle, most: r.Sequences, all: map[sequenceKey]*sequence{}, newest: map[sharedKey]*sequence{}}
}

// get finds the call's sequence, and counts the call; nil: not known. own is false where the
// sequence may be another caller's: then the call may follow it, and changes nothing of it.
func (t *table) get(c *Call, now time.Duration) (q *sequence, own bool) {
	q, own = t.all[keyOf(c)]
	if q == nil && c.Loose {
		q = t.newest[keyOf(c).sharedKey]
	}
	if q != nil {
		q.at = now
		t.order.MoveToBack(q.in)
	}
	return q, own
}

// put makes owner that of a sequence which began with epoch.
func (t *table) put(key sequenceKey, owner *gateway, epoch uint64, now time.Duration) *sequence {
	if q := t.all[key]; q != nil {
		t.remove(q)
	}
	if len(t.all) >= t.most {
		t.remove(t.order.Front().Value.(*sequence))
	}
	q := &sequence{key: key, owner: owner, was: owner.name, epoch: epoch, newest: true, at: now}
	q.in = t.order.PushBack(q)
	t.all[q.key] = q
	if last := t.newest[q.key.sharedKey]; key.loose() && (last == nil || last.epoch <= epoch) {
		t.newest[q.key.sharedKey] = q
	}
	owner.owned[q] = true
	return q
}

func (t *table) remove(q *sequence) {
	if q.owner != nil {
		delete(q.owner.owned, q)
	}
	t.order.Remove(q.in)
	delete(t.all, q.key)
	if t.newest[q.key.sharedKey] == q {
		delete(t.newest, q.key.sharedKey)
	}
}

// expire forgets what was idle for too long, but for what its gateway says lives.
func (t *table) expire(now time.Duration) {
	for e := t.order.Front(); e != nil; e = t.order.Front() {
		q := e.Value.(*sequence)
		if now-q.at <= t.idle {
			return
		}
		if q.told && !q.lost && !q.owner.dead {
			q.at = now
			t.order.MoveToBack(e)
			continue
		}
		t.remove(q)
	}
}
