package h2

import (
	"testing"
	"time"
)

// drains is a writer that has written everything by the time the reader's burst is over.
type drains struct{ c *conn }

func (d drains) Dispatch() {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	d.c.out.small = nil
}

// What was waited for may have come while the reader ended its burst: nobody tells it again.
func TestRoomWhileTheBurstEnds(t *testing.T) {
	c := &conn{}
	c.room.L = &c.mu
	c.out.small = make([]byte, backlog+1)
	c.burst.Open()
	if !c.burst.Add(drains{c}, 0) {
		t.Fatal("the burst is not open")
	}
	done := make(chan struct{})
	go func() {
		c.mu.Lock()
		c.makeRoomLocked()
		c.mu.Unlock()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		c.mu.Lock()
		c.ended = errStopped
		c.room.Broadcast()
		c.mu.Unlock()
		t.Error("the reader waits for room that there is")
	}
}
