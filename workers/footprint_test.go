package workers

import "testing"

func TestFootprint(t *testing.T) {
	var used int64 = 1000
	f := newFootprint(func() int64 { return used })
	a := f.begin()
	used += 100
	b := f.begin() // from here on the two share
	used += 60
	if got := f.end(a); got != 130 {
		t.Errorf("the first load took %d, want 130", got)
	}
	used += 7
	f.moved(func() { used -= 500 })
	used += 3
	if got := f.end(b); got != 40 {
		t.Errorf("the second load took %d, want 40", got)
	}
	c := f.begin()
	used -= 50
	if got := f.end(c); got != 0 {
		t.Errorf("a load that gave memory back took %d, want 0", got)
	}
	var none *footprint
	g := none.begin()
	ran := false
	none.moved(func() { ran = true })
	if none.end(g) != 0 || !ran {
		t.Error("what can't be measured is not 0")
	}
}
