package infer

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Budget{Limit: 64 << 10}
		half, err := b.Counted(make([]byte, 32<<10))
		if err != nil || b.Used() != 32<<10 || b.Scarce() {
			t.Fatalf("half: %v, used %d, scarce %t", err, b.Used(), b.Scarce())
		}
		if small, err := b.Counted(make([]byte, CountFrom-1)); small != nil || err != nil || b.Used() != 32<<10 {
			t.Errorf("under CountFrom: %v, %v, used %d", small, err, b.Used())
		}
		_, err = b.Counted(make([]byte, 33<<10))
		if ReasonOf(err) != ReasonMemory || CodeOf(err) != Unavailable || b.Used() != 32<<10 {
			t.Errorf("over the limit: %v, used %d; want reason %s, 32768", err, b.Used(), ReasonMemory)
		}
		if !b.Scarce() {
			t.Error("not scarce after a refusal")
		}
		time.Sleep(3 * time.Second)
		if b.Scarce() {
			t.Error("scarce three seconds after a refusal")
		}
		if err := b.Take(65 << 10); err == nil || b.Scarce() {
			t.Errorf("more than there ever is: %v, scarce %t", err, b.Scarce())
		}
		if err := b.Take(1); err != nil || !b.Scarce() {
			t.Errorf("over half: %v, scarce %t", err, b.Scarce())
		}
		if _, _, err := b.Alloc(64 << 10); err == nil || b.Used() != 32<<10+1 {
			t.Errorf("room over the limit: %v, used %d", err, b.Used())
		}
		room, memory, err := b.Alloc(CountFrom)
		if err != nil || len(room) != 0 || cap(room) != CountFrom || b.Used() != 32<<10+1+CountFrom {
			t.Errorf("room: %v, %d of %d bytes, used %d", err, len(room), cap(room), b.Used())
		}
		memory.Release()
		time.Sleep(3 * time.Second)
		half.Retain()
		half.Release()
		half.Release()
		b.Give(1)
		if b.Used() != 0 || b.Scarce() {
			t.Errorf("all given back: used %d, scarce %t", b.Used(), b.Scarce())
		}
	})
}

func TestNoBudget(t *testing.T) {
	var none *Budget
	if err := none.Take(1 << 40); err != nil || none.Used() != 0 || none.Scarce() {
		t.Errorf("nil: %v, used %d, scarce %t", err, none.Used(), none.Scarce())
	}
	none.Give(1)
	if m, err := none.Counted(make([]byte, 1<<20)); m != nil || err != nil {
		t.Errorf("nil counts: %v, %v", m, err)
	}
	if room, m, err := none.Alloc(1 << 20); m != nil || err != nil || cap(room) != 1<<20 {
		t.Errorf("nil counts room: %v, %v, %d", m, err, cap(room))
	}
	if b := (&Budget{}); b.Take(1<<40) != nil || b.Scarce() {
		t.Error("no limit, and refused or scarce")
	}
}
