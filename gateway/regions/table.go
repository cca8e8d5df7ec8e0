package regions

import (
	"github.com/sluice-serve/sluice/infer"
)

// id names a region among those of all owners.
type id struct {
	owner owner
	name  string
}

type state uint8

const (
	opening state = iota // workers are being told; nobody may use it
	open
	leaving // its name is gone; workers may still have it
)

// memory is what a region is of, as far as decisions go.
type memory struct {
	cuda   bool
	size   int64
	source source
}

// row is one region as far as decisions go.
type row struct {
	id
	memory
	state state
	refs  int // requests that may read or write it
}

// claim is who has registered memory, and how often, what is leaving included.
type claim struct {
	owner   owner
	regions int
}

// usage is what an owner has, what is leaving included.
type usage struct {
	regions int
	bytes   int64
}

// limits bound one owner's regions.
type limits struct {
	regions int
	bytes   int64
}

// table decides which region has which slot and who may use it. It is plain data.
type table struct {
	limits limits
	slots  uint32 // the last slot there is
	rows   map[uint32]*row
	names  map[id]uint32 // of regions that are not leaving
	use    map[owner]usage
	claims map[source]claim // of sources that are known
	spare  []uint32         // slots that were given back, the one that rests longest first
	fresh  uint32           // the last slot that was ever given
}

func newTable(l limits, slots uint32) table {
	return table{limits: l, slots: slots, rows: map[uint32]*row{}, names: map[id]uint32{}, use: map[owner]usage{},
		claims: map[source]claim{}}
}

// add takes a region in that is being opened, and gives it a slot. Memory is one owner's.
func (t *table) add(who id, m memory) (uint32, error) {
	if _, ok := t.names[who]; ok {
		return 0, infer.Errorf(infer.AlreadyExists, "shared memory region '%s' already in manager", who.name)
	}
	u, size, c := t.use[who.owner], m.size, t.claims[m.source]
	switch {
	case c.regions > 0 && c.owner != who.owner:
		return 0, infer.Errorf(infer.PermissionDenied, "shared memory region '%s': another caller has registered its memory",
			who.name)
	case u.regions >= t.limits.regions:
		return 0, infer.Errorf(infer.ResourceExhausted, "shared memory region '%s': %d regions are registered, the most is %d", who.name, u.regions,
			t.limits.regions)
	case size > t.limits.bytes-u.bytes:
		return 0, infer.Errorf(infer.ResourceExhausted, "shared memory region '%s' of %d bytes: regions of %d bytes are registered, the most is %d",
			who.name, size, u.bytes, t.limits.bytes)
	}
	slot := t.fresh + 1
	if n := len(t.spare); n > 0 && (t.fresh == t.slots || n > 1024) { // a slot rests before it is another region's
		slot, t.spare = t.spare[0], t.spare[1:]
	} else if t.fresh == t.slots {
		return 0, infer.Errorf(infer.ResourceExhausted, "shared memory region '%s': all %d places for regions are taken", who.name, t.slots)
	} else {
		t.fresh = slot
	}
	t.rows[slot] = &row{id: who, memory: m}
	t.names[who] = slot
	if m.source != (source{}) {
		t.claims[m.source] = claim{who.owner, c.regions + 1}
	}
	t.use[who.owner] = usage{u.regions + 1, u.bytes + size}
	return slot, nil
}

// opened lets requests use a region, unless it has left meanwhile.
func (t *table) opened(slot uint32) bool {
	r := t.rows[slot]
	if r == nil || r.state != opening {
		return false
	}
	r.state = open
	return true
}

// find is an owner's region that requests may use.
func (t *table) find(who id) (uint32, *row) {
	slot := t.names[who]
	if r := t.rows[slot]; slot != 0 && r.state == open {
		return slot, r
	}
	return 0, nil
}

// drop takes a reference back. idle: it was the last one of a region that leaves.
func (t *table) drop(slot uint32) (idle bool) {
	r := t.rows[slot]
	r.refs--
	return r.refs == 0 && r.state == leaving
}

// leave takes a region's name away. idle: nobody uses it.
func (t *table) leave(slot uint32) (idle bool) {
	r := t.rows[slot]
	r.state = leaving
	delete(t.names, r.id)
	return r.refs == 0
}

// closed forgets a region that workers have let go.
func (t *table) closed(slot uint32) {
	r := t.rows[slot]
	u := t.use[r.owner]
	if u = (usage{u.regions - 1, u.bytes - r.size}); u.regions == 0 {
		delete(t.use, r.owner)
	} else {
		t.use[r.owner] = u
	}
	if c := t.claims[r.source]; c.regions > 1 {
		t.claims[r.source] = claim{c.owner, c.regions - 1}
	} else {
		delete(t.claims, r.source)
	}
	delete(t.rows, slot)
	t.spare = append(t.spare, slot)
}
