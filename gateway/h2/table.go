package h2

import (
	"math/bits"
	"math/rand/v2"
)

// table finds streams by their identifiers, as a map would, without memory for each: the
// streams that share a slot are linked. The peer chooses identifiers, so the slot is that
// of a hash which it does not know. It has no lock of its own.
type table struct {
	link  link
	n     int
	by    uint64    // odd, drawn once: what identifiers are multiplied by
	slots []*Stream // a power of two of them; nil: none yet
}

// link is which of a stream's links a table uses.
type link uint8

const (
	inStreams link = iota
	inReceiving
	numLinks
)

// fewSlots is what a table begins with, and manySlots what it gives back when it is empty.
const (
	fewSlots  = 16
	manySlots = 256
)

func newTable(link link) table { return table{link: link, by: rand.Uint64() | 1} }

func (t *table) slot(id uint32) *(*Stream) {
	return &t.slots[uint64(id)*t.by>>(65-bits.Len(uint(len(t.slots))))]
}

// get is the stream of an identifier, or nil.
func (t *table) get(id uint32) *Stream {
	if t.n == 0 {
		return nil
	}
	st := *t.slot(id)
	for st != nil && st.id != id {
		st = st.next[t.link]
	}
	return st
}

// put adds a stream that is not in it.
func (t *table) put(st *Stream) {
	if 2*t.n >= len(t.slots) { // so that hardly two share a slot
		t.grow()
	}
	at := t.slot(st.id)
	st.next[t.link], *at = *at, st
	t.n++
}

func (t *table) grow() {
	all := t.all()
	t.slots = make([]*Stream, max(fewSlots, 2*len(t.slots)))
	for _, st := range all {
		at := t.slot(st.id)
		st.next[t.link], *at = *at, st
	}
}

// remove takes a stream out, if it is there.
func (t *table) remove(id uint32) {
	if t.n == 0 {
		return
	}
	at := t.slot(id)
	for *at != nil && (*at).id != id {
		at = &(*at).next[t.link]
	}
	st := *at
	if st == nil {
		return
	}
	*at, st.next[t.link] = st.next[t.link], nil
	if t.n--; t.n == 0 && len(t.slots) > manySlots {
		t.slots = nil
	}
}

// all are the streams, in no order, in memory of their own.
func (t *table) all() []*Stream {
	all := make([]*Stream, 0, t.n)
	for _, st := range t.slots {
		for ; st != nil; st = st.next[t.link] {
			all = append(all, st)
		}
	}
	return all
}
