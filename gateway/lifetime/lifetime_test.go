package lifetime

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestEnd(t *testing.T) {
	var c Context
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	ran := make(chan string, 2)
	c.AfterFunc(func() { ran <- "after" })
	stop := c.AfterFunc(func() { ran <- "stopped" })
	if !stop() || stop() {
		t.Error("stop: want true, then false")
	}
	child, cancel := context.WithCancel(&c)
	defer cancel()
	done := c.Done()
	c.End(context.Canceled)
	c.End(context.DeadlineExceeded)
	<-done
	<-child.Done()
	if got := <-ran; got != "after" {
		t.Errorf("ran %q", got)
	}
	if c.Err() != context.Canceled {
		t.Errorf("err %v", c.Err())
	}
	c.AfterFunc(func() { ran <- "late" })
	if got := <-ran; got != "late" {
		t.Errorf("ran %q", got)
	}
}

func TestDoneAfterTheEnd(t *testing.T) {
	var c Context
	c.End(context.Canceled)
	<-c.Done()
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Context
		if _, ok := c.Deadline(); ok {
			t.Error("a deadline without one")
		}
		c.SetTimeout(time.Second)
		if at, ok := c.Deadline(); !ok || time.Until(at) != time.Second {
			t.Errorf("deadline %v %v", at, ok)
		}
		begin := time.Now()
		<-c.Done()
		if c.Err() != context.DeadlineExceeded || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", c.Err(), time.Since(begin))
		}
	})
}

// TestShortTimeout sees that a timeout may end the context while it is being set.
func TestShortTimeout(t *testing.T) {
	for range 200 {
		var c Context
		c.SetTimeout(1)
		<-c.Done()
		if c.Err() != context.DeadlineExceeded {
			t.Fatalf("err %v", c.Err())
		}
	}
}

// A context is used again with what it had forgotten, its timer included; not before its
// end, and not when its time was up.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Context
		if c.Renew() {
			t.Error("renewed before its end")
		}
		for i := range 3 {
			if i != 1 {
				c.SetTimeout(time.Second)
			}
			if _, timed := c.Deadline(); timed != (i != 1) || c.Err() != nil {
				t.Errorf("time %d: timed %v, err %v", i, timed, c.Err())
			}
			time.Sleep(900 * time.Millisecond)
			select {
			case <-c.Done():
				t.Errorf("time %d: ended too early", i)
			default:
			}
			c.End(context.Canceled)
			if !c.Renew() {
				t.Errorf("time %d: not renewed", i)
			}
		}
		time.Sleep(2 * time.Second)
		if c.Err() != nil {
			t.Errorf("ended by an old timer: %v", c.Err())
		}
		c.SetTimeout(time.Second)
		time.Sleep(2 * time.Second)
		if c.Err() != context.DeadlineExceeded || c.Renew() {
			t.Errorf("err %v, and renewed", c.Err())
		}
	})
}

func TestAhead(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{0: 0, 20 * time.Millisecond: 19 * time.Millisecond, time.Second: 995 * time.Millisecond} {
		if got := Ahead(d); got != want {
			t.Errorf("%v becomes %v, want %v", d, got, want)
		}
	}
}
