package httpapi

import "hash/maphash"

const (
	// fewNames are looked for one by one.
	fewNames = 16
	// nameSlots hold the largest list with as much room beside it.
	nameSlots = 2 * maxParams
)

// names finds the parameters of one object by their names, where there are many: else a
// request of a megabyte of names would be compared with a thousand of them at each. The zero
// value is empty.
type names struct {
	seed   maphash.Seed
	seeded bool
	slots  [nameSlots]uint16 // places in the list from first on, plus one
	count  int               // of them are in slots
	first  int
	output bool // the list is of outputs
}

// has says that key is the name of one of those in list from first on; text has the names.
// output tells the one list from the other.
func (n *names) has(list []param, first int, output bool, text, key []byte) bool {
	if len(list)-first <= fewNames {
		for _, p := range list[first:] {
			if string(text[p.name.from:p.name.to]) == string(key) {
				return true
			}
		}
		return false
	}
	if n.count > 0 && (n.first != first || n.output != output) {
		n.reset()
	}
	n.first, n.output = first, output
	for n.count < len(list)-first {
		at := &list[first+n.count]
		n.count++
		*n.slot(list, text, text[at.name.from:at.name.to]) = uint16(n.count)
	}
	return *n.slot(list, text, key) != 0
}

// slot is where key stands, or would.
func (n *names) slot(list []param, text, key []byte) *uint16 {
	if !n.seeded {
		n.seed, n.seeded = maphash.MakeSeed(), true
	}
	for i := maphash.Bytes(n.seed, key) % nameSlots; ; i = (i + 1) % nameSlots {
		at := n.slots[i]
		if at == 0 {
			return &n.slots[i]
		}
		if p := &list[n.first+int(at)-1]; string(text[p.name.from:p.name.to]) == string(key) {
			return &n.slots[i]
		}
	}
}

// reset forgets the list.
func (n *names) reset() {
	if n.count > 0 {
		n.slots, n.count = [nameSlots]uint16{}, 0
	}
}
