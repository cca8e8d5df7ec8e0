package gateway

import (
	"testing"
	"time"
)

func TestSpareMemory(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name string
		now  spare
		want bool
	}{
		{"little", spare{heap: 50 * mib, live: 20 * mib, free: 20 * mib, collectedOnce: true}, false},
		{"garbage", spare{heap: 120 * mib, live: 20 * mib, collectedOnce: true}, true},
		{"free pages", spare{heap: 20 * mib, live: 20 * mib, free: 100 * mib, collectedOnce: true}, true},
		{"both", spare{heap: 60 * mib, live: 20 * mib, free: 30 * mib, collectedOnce: true}, true},
		{"all of it lives", spare{heap: 900 * mib, live: 890 * mib, free: 10 * mib, collectedOnce: true}, false},
		{"busy", spare{cpu: time.Minute + spareBusy, heap: 500 * mib, live: 20 * mib, free: 500 * mib, collectedOnce: true}, false},
		{"nearly at rest", spare{cpu: time.Minute + spareBusy - 1, free: 500 * mib, collectedOnce: true}, true},
		{"nothing known of what lives", spare{heap: 100 * mib}, false},
	} {
		if tc.now.cpu == 0 {
			tc.now.cpu = time.Minute
		}
		if got := tc.now.due(spare{cpu: time.Minute}); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// What readSpare reads is there, under the names that this Go has.
func TestReadSpare(t *testing.T) {
	kept := make([]byte, 8<<20)
	s := readSpare()
	if s.heap < int64(len(kept)) || s.cpu <= 0 {
		t.Errorf("read %+v", s)
	}
	kept[0] = 1
}
