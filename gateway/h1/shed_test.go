package h1

import (
	"bufio"
	"io"
	"testing"

	"github.com/sluice-serve/sluice/gateway/listen"
)

// A connection that rests is closed when its descriptor is needed, whether a goroutine or the
// watcher reads it; not one that has a request, nor one that had one meanwhile.
func TestShed(t *testing.T) {
	addr, _, s := start(t, nil)
	resting := func() []listen.Resting { return s.resting(0, nil) }
	fresh := dial(t, addr)
	used := dial(t, addr)
	r := bufio.NewReader(used)
	request := func(path string) {
		t.Helper()
		if _, err := io.WriteString(used, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	request("/")
	if _, err := answer(r); err != nil {
		t.Fatal(err)
	}
	poll(t, "both rest", func() bool { return len(resting()) == 2 })
	before := resting()
	request("/wait")
	poll(t, "one has a request", func() bool { return len(resting()) == 1 })
	n := 0
	for _, c := range before {
		if c.Conn.Shed(c.Since) {
			n++
		}
		if c.Conn.Shed(c.Since) {
			t.Error("closed twice")
		}
	}
	if n != 1 {
		t.Errorf("%d were closed, want the one that rests", n)
	}
	if _, err := fresh.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the one that rested reads %v, want EOF", err)
	}
	poll(t, "one is left", func() bool { return len(s.conns.All()) == 1 })
}
