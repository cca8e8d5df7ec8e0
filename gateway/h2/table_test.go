package h2

import (
	"math/rand/v2"
	"testing"
)

// TestTable compares a table with a map, through growth and emptiness.
func TestTable(t *testing.T) {
	draw := rand.New(rand.NewPCG(3, 4))
	for _, most := range []int{3, 40, 5000} {
		table, want := newTable(inReceiving), map[uint32]*Stream{}
		for range 20000 {
			id := 2*uint32(draw.IntN(most)) + 1
			switch st := want[id]; {
			case st == nil && draw.IntN(3) > 0:
				st = &Stream{record: record{id: id}}
				table.put(st)
				want[id] = st
			default:
				table.remove(id)
				delete(want, id)
			}
			probe := 2*uint32(draw.IntN(most)) + 1
			if table.get(probe) != want[probe] || table.n != len(want) {
				t.Fatalf("stream %d: got %p of %d, want %p of %d", probe, table.get(probe), table.n, want[probe], len(want))
			}
		}
		all := table.all()
		if len(all) != len(want) {
			t.Fatalf("got %d streams, want %d", len(all), len(want))
		}
		for _, st := range all {
			if want[st.id] != st {
				t.Errorf("got stream %d", st.id)
			}
			table.remove(st.id)
		}
		if table.n != 0 || len(table.slots) > manySlots {
			t.Errorf("%d streams and %d slots are left", table.n, len(table.slots))
		}
	}
}

// BenchmarkTable is what a call costs in a table that holds 31 others.
func BenchmarkTable(b *testing.B) {
	table := newTable(inStreams)
	streams := make([]Stream, 32)
	for i := range 31 {
		streams[i].id = uint32(2*i + 1)
		table.put(&streams[i])
	}
	id := uint32(63)
	for b.Loop() {
		st := &streams[id/2%32]
		st.id = id
		table.put(st)
		table.get(id)
		table.remove(id - 62)
		id += 2
	}
}
