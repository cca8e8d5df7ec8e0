package queue

import "slices"

// Line is what a config says of one level.
type Line struct {
	Limit int // entries that may wait in it
	// Delays says that an entry which waited too long goes on waiting behind all others
	// of its level, in place of being rejected.
	Delays bool
}

// Lines are the waiting lines of a model version: strictly those of a lower level
// first, and of one level in order of arrival.
type Lines struct {
	Default Line
	Own     map[uint64]Line // of levels that have their own; read-only
	// Fair > 0 lets each Fair-th batch begin with the oldest of the entries that are the
	// first of their levels, so that none starves.
	Fair int
}

func (l *Lines) of(level uint64) Line {
	if own, ok := l.Own[level]; ok {
		return own
	}
	return l.Default
}

// place is where an entry waits.
type place uint8

const (
	nowhere   place = iota
	inFresh         // in its level's line, by arrival
	inDelayed       // behind those: it waited too long
	inLead          // before all levels, for the sake of fairness
	inAgain
	inStrand
)

// lines are all levels in one list, in the order in which entries leave: an entry that
// leads, then level by level the fresh ones and the delayed ones. A batch may span
// levels, as in the original, so a Cutter walks one list.
type lines struct {
	cfg    Lines
	order  list
	levels []*level // ascending; those that were used, less some of the empty ones
	lead   *Entry
	passed int // batches that left since an entry led, while several levels waited
}

// level is the part of the list with one level's entries.
type level struct {
	number  uint64
	n       int    // entries of this level, leading ones too
	fresh   *Entry // the last of the fresh ones; nil: none
	delayed *Entry // the last of the delayed ones; nil: none
	shares  shares
}

// keepLevels is how many levels stay though nothing waits in them.
const keepLevels = 64

func (v *level) last() *Entry {
	if v.delayed != nil {
		return v.delayed
	}
	return v.fresh
}

func (l *lines) find(number uint64) (int, bool) {
	return slices.BinarySearchFunc(l.levels, number, func(v *level, n uint64) int {
		switch {
		case v.number < n:
			return -1
		case v.number > n:
			return 1
		}
		return 0
	})
}

func (l *lines) full(e *Entry) bool {
	n := 0
	if i, ok := l.find(e.Level); ok {
		n = l.levels[i].n
	}
	return n >= l.cfg.of(e.Level).Limit
}

func (l *lines) delays(e *Entry) bool { return l.cfg.of(e.Level).Delays }

// add puts an entry behind the fresh ones of its level.
func (l *lines) add(e *Entry) {
	i, ok := l.find(e.Level)
	if !ok {
		l.levels = slices.Insert(l.levels, i, &level{number: e.Level})
	}
	v := l.levels[i]
	after := v.fresh
	if after == nil {
		after = l.before(i)
	}
	v.fresh = e
	v.n++
	v.shares.add(e)
	l.order.insert(e, after, inFresh)
}

// before is the last entry in front of a level's part of the list.
func (l *lines) before(i int) *Entry {
	for i--; i >= 0; i-- {
		if e := l.levels[i].last(); e != nil {
			return e
		}
	}
	return l.lead
}

// delay moves an entry behind all others of its level.
func (l *lines) delay(e *Entry) {
	if e.where != inFresh {
		return
	}
	i, _ := l.find(e.Level)
	v := l.levels[i]
	l.unlink(v, e)
	after := v.last()
	if after == nil {
		after = l.before(i)
	}
	v.delayed = e
	l.order.insert(e, after, inDelayed)
}

func (l *lines) remove(e *Entry) {
	i, _ := l.find(e.Level)
	v := l.levels[i]
	l.unlink(v, e)
	v.shares.remove(e)
	v.n--
	if v.n == 0 && len(l.levels) > keepLevels {
		l.levels = slices.Delete(l.levels, i, i+1)
	}
}

// unlink takes an entry out of the list; v is its level, which goes on counting it.
func (l *lines) unlink(v *level, e *Entry) {
	before := e.prev
	if before != nil && (before.Level != e.Level || before.where != e.where) {
		before = nil
	}
	switch e {
	case v.fresh:
		v.fresh = before
	case v.delayed:
		v.delayed = before
	case l.lead:
		l.lead = nil
	}
	l.order.remove(e)
}

// turn puts the entry that waits longest in front when it is time for that. It is asked
// before a batch is cut; an entry that leads goes on doing so until it leaves.
func (l *lines) turn() {
	if l.cfg.Fair == 0 || l.lead != nil || l.passed < l.cfg.Fair-1 {
		return
	}
	oldest := l.order.head
	var from *Entry
	for _, v := range l.levels {
		for _, last := range [...]*Entry{v.fresh, v.delayed} {
			if last == nil {
				continue
			}
			first := l.order.head
			if from != nil {
				first = from.next
			}
			if first.At < oldest.At {
				oldest = first
			}
			from = last
		}
	}
	l.passed = -1 // its own batch is not counted
	if oldest == l.order.head {
		return
	}
	i, _ := l.find(oldest.Level)
	l.unlink(l.levels[i], oldest)
	l.order.insert(oldest, nil, inLead)
	l.lead = oldest
}

// left counts a batch.
func (l *lines) left() {
	switch {
	case l.cfg.Fair == 0:
	case l.order.n == 0:
		l.passed = 0
	default:
		l.passed++
	}
}

// list is entries in order, doubly linked.
type list struct {
	head, tail *Entry
	n          int
}

// insert puts e behind another entry of the list, or in front of all for nil.
func (l *list) insert(e, after *Entry, where place) {
	e.where, e.prev = where, after
	if after != nil {
		e.next, after.next = after.next, e
	} else {
		e.next, l.head = l.head, e
	}
	if e.next != nil {
		e.next.prev = e
	} else {
		l.tail = e
	}
	l.n++
}

func (l *list) remove(e *Entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.where, e.prev, e.next = nowhere, nil, nil
	l.n--
}
