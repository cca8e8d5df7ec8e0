package listen

import (
	"net"
	"testing"
	"time"
)

// TestSentOn sees what a peer takes, over each kind of socket.
func TestSentOn(t *testing.T) {
	for _, at := range []struct{ network, address string }{{"tcp", "127.0.0.1:0"}, {"unix", t.TempDir() + "/s"}} {
		t.Run(at.network, func(t *testing.T) {
			l, err := net.Listen(at.network, at.address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			peer, err := net.Dial(at.network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			before, ok := SentOn(nc, -1)
			if !ok || before.Queued != 0 {
				t.Fatalf("nothing was sent: %+v, %t", before, ok)
			}
			if err := nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if n, err := nc.Write(make([]byte, 64<<20)); err == nil {
				t.Fatalf("%d bytes were taken", n)
			}
			full, ok := SentOn(nc, -1)
			if !ok || full.Queued == 0 {
				t.Fatalf("the socket is full: %+v, %t", full, ok)
			}
			var p Pace
			if first, second := p.Look(10, full), p.Look(20, full); first != 10 || second != 10 {
				t.Errorf("it takes nothing: since %d, then %d, want 10", first, second)
			}
			buf := make([]byte, 1<<20)
			for end := time.Now().Add(10 * time.Second); p.Look(30, full) != 30; full, _ = SentOn(nc, -1) {
				if _, err := peer.Read(buf); err != nil || time.Now().After(end) {
					t.Fatalf("what was read does not show: %+v: %v", full, err)
				}
			}
		})
	}
	if _, ok := SentOn(pipe(t), -1); ok {
		t.Error("a pipe has a socket")
	}
}

func pipe(t *testing.T) net.Conn {
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a
}

// Looking begins at once, goes on for ten periods with the last scarce one, and then rests.
func TestLooks(t *testing.T) {
	var l Looks
	want := func(scarce, look bool) {
		t.Helper()
		if got := l.Look(scarce); got != look {
			t.Errorf("scarce %t: looks %t, want %t", scarce, got, look)
		}
	}
	for range 2 {
		want(false, false)
		want(true, true)
		for range lookOn - 1 {
			want(false, true)
		}
		for range 3 {
			want(false, false)
		}
	}
}
