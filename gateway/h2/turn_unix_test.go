package h2

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// lingering is a descriptor whose closing waits: a TCP socket with much to send to a peer that
// takes nothing. It is given to send, and closed.
func lingering(t *testing.T, wait time.Duration, send func(fd int)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		b := make([]byte, 1<<20)
		for err == nil {
			_, err = unix.Write(int(fd), b)
		}
		err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(wait / time.Second)})
		if err == nil {
			// closing a nonblocking socket does not wait
			err = unix.SetNonblock(int(fd), false)
		}
		send(int(fd))
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.Close() // what was sent is another reference
}

// A peer on a Unix socket may pass descriptors whose closing takes as long as it likes, and
// the kernel closes them in the read that drops them: others of the loop don't wait for that.
func TestPassedDescriptorsHoldNobody(t *testing.T) {
	l := looptest.Start(t)
	loops := func(c *Config) { c.Loops = []*loop.Loop{l} }
	local, quick := start(t, loops), start(t, loops)
	path := filepath.Join(t.TempDir(), "s")
	ul, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- local.s.Serve(ul) }()
	t.Cleanup(func() {
		local.s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := newRaw(t, nc)
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings())
	c.must(c.fr.WriteSettingsAck())
	for i := uint32(0); i < 20 || i < 200 && !isParked(local); i++ { // it would be parked by then
		c.call(2*i+1, "x")
		if got := c.outcome(2*i + 1); got != "0 x" {
			t.Fatal(got)
		}
	}
	cc := quick.dial(t)
	for range 20 {
		if _, err := call(t.Context(), cc, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	lingering(t, 5*time.Second, func(fd int) {
		ping := []byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
		if _, _, err := nc.(*net.UnixConn).WriteMsgUnix(ping, unix.UnixRights(fd), nil); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for range 50 {
		if _, err := call(ctx, cc, []byte("x")); err != nil {
			t.Fatalf("others wait for the closing of a descriptor: %v", err)
		}
	}
}
