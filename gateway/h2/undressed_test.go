package h2

import (
	"net"
	"testing"
)

// A parked connection whose socket could not be had back, as when descriptors have run out, ends,
// also where somebody was about to write to it.
func TestWriteWhenItsSocketIsLost(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	f := start(t, nil)
	c := newConn(f.s, server)
	c.mu.Lock()
	c.ready, c.fd = true, 1<<30 // parked, and its descriptor is none
	c.out.small = append(c.out.small, "frame"...)
	mine := c.claimLocked()
	c.mu.Unlock()
	if !mine {
		t.Fatal("another one writes")
	}
	c.mu.Lock() // another one gives it its goroutine meanwhile
	c.nc, _ = net.Pipe()
	_ = c.nc.Close()
	c.outer, c.fd, c.try, c.taker = c.nc, -1, nil, nil
	c.mu.Unlock()
	c.writeAll(true)
	c.flushers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil || c.flushing {
		t.Errorf("ended: %v, writing: %v", c.ended, c.flushing)
	}
	_ = server.Close()
}
