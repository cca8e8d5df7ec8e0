package regions

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// model is the table as one would write it down without slots: what each owner sees.
type model struct {
	visible map[id]uint32    // open
	refs    map[uint32]int   // held
	leaving map[uint32]bool  // names are gone
	idle    map[uint32]bool  // the table has said so
	size    map[uint32]int64 // not closed
	owner   map[uint32]owner
	source  map[uint32]source // not closed
}

const (
	randomSlots   = 12
	randomRegions = 6   // of one owner
	randomBytes   = 500 // of one owner
)

// walk is one random schedule.
type walk struct {
	r *rand.Rand
	t table
	m model
}

// Random schedules against the model: no slot is two regions' at once, no name shows a
// region of somebody else, no memory is two owners', idle is said once, when it is so, and shares are exact.
func TestRandom(t *testing.T) {
	for seed := range uint64(200) {
		w := &walk{r: rand.New(rand.NewPCG(seed, 1)), t: newTable(limits{randomRegions, randomBytes}, randomSlots),
			m: model{map[id]uint32{}, map[uint32]int{}, map[uint32]bool{}, map[uint32]bool{},
				map[uint32]int64{}, map[uint32]owner{}, map[uint32]source{}}}
		steps := []func() error{w.add, w.find, w.drop, w.leave, w.close}
		for range 400 {
			if err := steps[w.r.IntN(len(steps))](); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if len(w.t.rows) != len(w.m.size) || len(w.t.names) != len(w.m.visible) {
			t.Fatalf("seed %d: %d rows and %d names, want %d and %d", seed, len(w.t.rows), len(w.t.names), len(w.m.size), len(w.m.visible))
		}
		known := map[source]bool{{}: true}
		for _, from := range w.m.source {
			known[from] = true
		}
		if len(w.t.claims) != len(known)-1 {
			t.Fatalf("seed %d: claims %v, want those of %v", seed, w.t.claims, w.m.source)
		}
	}
}

func (w *walk) who() id {
	return id{owner{uid: uint32(w.r.IntN(3))}, string(rune('x' + w.r.IntN(3)))}
}

// pick is a random slot that is taken and of which ok holds; 0: there is none.
func (w *walk) pick(ok func(uint32) bool) uint32 {
	var all []uint32
	for slot := uint32(1); slot <= randomSlots; slot++ {
		if _, taken := w.m.size[slot]; taken && ok(slot) {
			all = append(all, slot)
		}
	}
	if len(all) == 0 {
		return 0
	}
	return all[w.r.IntN(len(all))]
}

func (w *walk) add() error {
	who, size, from := w.who(), int64(1+w.r.IntN(200)), source{ino: uint64(w.r.IntN(6))}
	count, sum, taken := 0, int64(0), false
	for slot, owner := range w.m.owner {
		if owner == who.owner {
			count, sum = count+1, sum+w.m.size[slot]
		} else if from.ino != 0 && w.m.source[slot] == from {
			taken = true
		}
	}
	want := !taken && w.m.visible[who] == 0 && count < randomRegions && sum+size <= randomBytes &&
		len(w.m.size) < randomSlots
	slot, err := w.t.add(who, memory{size: size, source: from})
	if (err == nil) != want {
		return fmt.Errorf("adding %v of %d bytes: %w, want ok %t", who, size, err, want)
	}
	if err != nil {
		return nil
	}
	if _, taken := w.m.size[slot]; taken || !w.t.opened(slot) {
		return fmt.Errorf("slot %d is taken: %t, or does not open", slot, taken)
	}
	w.m.visible[who], w.m.size[slot], w.m.owner[slot] = slot, size, who.owner
	w.m.source[slot] = from
	return nil
}

func (w *walk) find() error {
	who := w.who()
	slot, row := w.t.find(who)
	if slot != w.m.visible[who] {
		return fmt.Errorf("%v is slot %d, want %d", who, slot, w.m.visible[who])
	}
	if slot != 0 {
		row.refs++
		w.m.refs[slot]++
	}
	return nil
}

func (w *walk) drop() error {
	slot := w.pick(func(s uint32) bool { return w.m.refs[s] > 0 })
	if slot == 0 {
		return nil
	}
	w.m.refs[slot]--
	return w.said(slot, w.t.drop(slot), w.m.leaving[slot] && w.m.refs[slot] == 0)
}

func (w *walk) leave() error {
	slot := w.pick(func(s uint32) bool { return !w.m.leaving[s] })
	if slot == 0 {
		return nil
	}
	for name, s := range w.m.visible {
		if s == slot {
			delete(w.m.visible, name)
		}
	}
	w.m.leaving[slot] = true
	return w.said(slot, w.t.leave(slot), w.m.refs[slot] == 0)
}

// said holds what the table says of a slot, idle or not, against the model.
func (w *walk) said(slot uint32, idle, want bool) error {
	if idle != want || idle && w.m.idle[slot] {
		return fmt.Errorf("slot %d is said to be idle: %t, want %t", slot, idle, want)
	}
	if idle {
		w.m.idle[slot] = true
	}
	return nil
}

func (w *walk) close() error {
	slot := w.pick(func(s uint32) bool { return w.m.idle[s] })
	if slot == 0 {
		return nil
	}
	w.t.closed(slot)
	delete(w.m.idle, slot)
	delete(w.m.size, slot)
	delete(w.m.owner, slot)
	delete(w.m.source, slot)
	delete(w.m.leaving, slot)
	delete(w.m.refs, slot)
	return nil
}
