package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestHistory walks through what a checker may conclude from calls that overlap.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, zero := &history{}, time.Now()
		at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
		until := func(s int) { time.Sleep(time.Until(at(s))) }

		until(1)
		first := h.begin(map[int]int32{1: 10, 2: 11})
		until(2)
		h.finish(first, true)
		until(4)
		second := h.begin(map[int]int32{1: 20})
		until(5)
		h.finish(second, true)
		until(7)
		unload := h.begin(nil)
		until(8)
		h.finish(unload, true)
		until(9)
		lost := h.begin(map[int]int32{1: 30})
		h.abandon(lost)
		until(30)

		for _, row := range []struct {
			name         string
			k            int32
			version, got int
			begin, end   int
			may          bool
		}{
			{"before its load", 10, 1, 0, 0, 0, false},
			{"during its load", 10, 1, 0, 1, 1, true},
			{"latest version", 11, 0, 2, 2, 3, true},
			{"not the latest version", 10, 0, 0, 2, 3, false},
			{"named by another version", 11, 0, 1, 2, 3, false},
			{"old while the next loads", 10, 1, 0, 4, 4, true},
			{"new while it loads", 20, 0, 0, 4, 4, true},
			{"old after the next load", 10, 1, 0, 5, 6, false},
			{"old of a call that began before", 10, 1, 0, 4, 6, true},
			{"version that is gone", 11, 2, 0, 6, 6, false},
			{"during the unload", 20, 0, 0, 7, 9, true},
			{"after the unload", 20, 0, 0, 8, 9, false},
			{"of an abandoned load", 30, 0, 0, 25, 26, true},
		} {
			if may := h.mayAdd(row.k, row.version, row.got, at(row.begin), at(row.end)); may != row.may {
				t.Errorf("%s: may add %d: %t, want %t", row.name, row.k, may, row.may)
			}
		}
		for _, row := range []struct {
			begin, end int
			served     bool
		}{{1, 3, false}, {2, 3, true}, {3, 6, true}, {4, 7, false}, {8, 8, false}, {20, 25, false}} {
			if served := h.served(at(row.begin), at(row.end)); served != row.served {
				t.Errorf("served from %d to %d: %t, want %t", row.begin, row.end, served, row.served)
			}
		}
	})
}

// TestHistoryForgets keeps a long run's list short.
func TestHistoryForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{}
		for range 10000 {
			c := h.begin(map[int]int32{1: 1})
			time.Sleep(time.Second)
			h.finish(c, true)
		}
		if n := len(h.changes); n > 200 {
			t.Errorf("%d changes are kept", n)
		}
	})
}
