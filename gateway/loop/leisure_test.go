package loop

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

func TestLeisure(t *testing.T) {
	l := start(t)
	beside, err := New(l.log, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := beside.Close(); err != nil {
			t.Error(err)
		}
	})
	takes := func(l *Loop, size int, want bool) {
		t.Helper()
		begin, ok := l.Takes(size)
		if ok != want {
			t.Errorf("%d bytes: %t", size, ok)
		}
		if ok && begin > 0 != (size > little) {
			t.Errorf("%d bytes: begun at %d", size, begin)
		}
	}
	takes(nil, little, true) // with one processor there is no loop
	takes(nil, little+1, false)
	(*Loop)(nil).Took(0)
	for range 2 {
		takes(l, little, true)
		takes(l, little+1, true)
		takes(l, much, true)
		takes(l, much+1, false)
	}

	// A connection that says something takes all loops' leisure, until it has said nothing
	// between two questions.
	told := make(chan struct{})
	fd := bell(t, 0)
	id := beside.Register(handler(func(uint32, []byte) { told <- struct{}{} }))
	if err := beside.Control(unix.EPOLL_CTL_ADD, fd, id, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	ring(t, fd)
	<-told
	for end := time.Now().Add(10 * time.Second); !l.leisure.served.Load(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the loops do not know of each other")
		}
	}
	takes(l, little, true)
	takes(l, much, false)
	takes(l, much, true)

	// What took a while is not done again for as long; what was little does not count.
	begin, _ := l.Takes(little)
	l.Took(begin)
	takes(l, much, true)
	begin, _ = l.Takes(much)
	end := infer.Now()
	for end == begin {
		end = infer.Now()
	}
	l.Took(begin)
	if from := beside.leisure.from.Load(); from < end+(end-begin) {
		t.Errorf("leisure again at %d: begun at %d, ended at %d", from, begin, end)
	}
	l.leisure.from.Store(infer.Now() + int64(time.Hour))
	takes(beside, much, false)
	takes(beside, little, true)
}
