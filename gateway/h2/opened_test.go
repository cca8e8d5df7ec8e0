package h2

import (
	"testing"
	"time"
)

// The last word of a drain says which calls are served. So it must not name one that is not among
// the streams yet: the connection would seem to have nothing left, and end before it is served.
func TestLastWordNamesNoneThatIsNotThere(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	if got := c.ping(); got != "alive" {
		t.Fatal(got)
	}
	cn := f.s.conns.All()[0]
	cn.mu.Lock()
	c.call(1, "x", "do", "now")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 30 { // the reading goroutine comes to the lock, and no further
		<-tick.C
	}
	there, opened := cn.streams.n, cn.opened.Load()
	cn.mu.Unlock()
	if there != 0 || opened != 0 {
		t.Errorf("%d streams, the last one is %d", there, opened)
	}
	if got := c.outcome(1); got != "0 x" {
		t.Error(got)
	}
}
