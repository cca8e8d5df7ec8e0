package sequence

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// TestLostIsBounded: of more sequences than are remembered the oldest are forgotten, and none counts
// twice.
func TestLostIsBounded(t *testing.T) {
	var l lost
	id := func(n int) key { return key{id: infer.Correlation{ID: uint64(n + 1)}} }
	for n := range 3 * maxLost {
		l.add(id(n))
		if n%3 == 0 {
			l.stamp(int64(n+1), 1)
		}
	}
	l.add(id(3*maxLost - 1))
	if len(l.all) != maxLost || l.order.Len() != maxLost {
		t.Fatalf("%d and %d are remembered, want %d", len(l.all), l.order.Len(), maxLost)
	}
	now := int64(3 * maxLost)
	if l.has(id(0), now, 1) || l.has(id(2*maxLost-1), now, 1) || !l.has(id(2*maxLost), now, 1) || !l.has(id(3*maxLost-1), now, 1) {
		t.Error("not the oldest were forgotten")
	}
	l.stamp(now+lostLife, 1)
	if len(l.all) != 0 || l.order.Len() != 0 || l.fresh != 0 {
		t.Errorf("%d, %d and %d are left", len(l.all), l.order.Len(), l.fresh)
	}
}
