package regions

import (
	"math/rand/v2"
	"testing"
)

// model is the table as one would write it down without slots: what each owner sees.
type model struct {
	visible map[id]uint32    // open
	refs    map[uint32]int   // held
	leaving map[uint32]bool  // names are gone
	size    map[uint32]int64 // not closed
	owner   map[uint32]string
}

// Random schedules against the model: no slot is two regions' at once, no name shows a
// region of somebody else, idle is said once, when it is so, and shares are exact.
func TestRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const most, bytes = 6, 500
		tb := newTable(limits{most, bytes}, 12)
		m := model{visible: map[id]uint32{}, refs: map[uint32]int{}, leaving: map[uint32]bool{}, size: map[uint32]int64{}, owner: map[uint32]string{}}
		idle := map[uint32]bool{}
		pick := func(ok func(uint32) bool) uint32 {
			var all []uint32
			for slot := uint32(1); slot <= 12; slot++ {
				if _, there := m.size[slot]; there && ok(slot) {
					all = append(all, slot)
				}
			}
			if len(all) == 0 {
				return 0
			}
			return all[r.IntN(len(all))]
		}
		for range 400 {
			who := id{string(rune('a' + r.IntN(3))), string(rune('x' + r.IntN(3)))}
			switch r.IntN(5) {
			case 0:
				size := int64(1 + r.IntN(200))
				count, sum := 0, int64(0)
				for slot, owner := range m.owner {
					if owner == who.owner {
						count, sum = count+1, sum+m.size[slot]
					}
				}
				slot, err := tb.add(who, false, size)
				want := m.visible[who] == 0 && count < most && sum+size <= bytes && len(m.size) < 12
				if (err == nil) != want {
					t.Fatalf("seed %d: adding %v of %d bytes: %v, want ok %t", seed, who, size, err, want)
				}
				if err != nil {
					continue
				}
				if _, taken := m.size[slot]; taken {
					t.Fatalf("seed %d: slot %d is taken", seed, slot)
				}
				if !tb.opened(slot) {
					t.Fatalf("seed %d: slot %d does not open", seed, slot)
				}
				m.visible[who], m.size[slot], m.owner[slot] = slot, size, who.owner
			case 1:
				slot, row := tb.find(who)
				if slot != m.visible[who] {
					t.Fatalf("seed %d: %v is slot %d, want %d", seed, who, slot, m.visible[who])
				}
				if slot != 0 {
					row.refs++
					m.refs[slot]++
				}
			case 2:
				if slot := pick(func(s uint32) bool { return m.refs[s] > 0 }); slot != 0 {
					m.refs[slot]--
					if got, want := tb.drop(slot), m.leaving[slot] && m.refs[slot] == 0; got != want || got && idle[slot] {
						t.Fatalf("seed %d: dropping of slot %d says idle %t, want %t", seed, slot, got, want)
					} else if got {
						idle[slot] = true
					}
				}
			case 3:
				if slot := pick(func(s uint32) bool { return !m.leaving[s] }); slot != 0 {
					for name, s := range m.visible {
						if s == slot {
							delete(m.visible, name)
						}
					}
					m.leaving[slot] = true
					if got := tb.leave(slot); got != (m.refs[slot] == 0) {
						t.Fatalf("seed %d: slot %d leaves and says idle %t with %d references", seed, slot, got, m.refs[slot])
					} else if got {
						idle[slot] = true
					}
				}
			case 4:
				if slot := pick(func(s uint32) bool { return idle[s] }); slot != 0 {
					tb.closed(slot)
					delete(idle, slot)
					delete(m.size, slot)
					delete(m.owner, slot)
					delete(m.leaving, slot)
					delete(m.refs, slot)
				}
			}
		}
		if len(tb.rows) != len(m.size) || len(tb.names) != len(m.visible) {
			t.Fatalf("seed %d: %d rows and %d names, want %d and %d", seed, len(tb.rows), len(tb.names), len(m.size), len(m.visible))
		}
	}
}
