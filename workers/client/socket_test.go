package client

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/shm"
)

// socketAddress is unix:PATH of a socket that nobody listens on yet.
func socketAddress(t testing.TB) string { return "unix:" + filepath.Join(t.TempDir(), "worker") }

// startSocket runs a worker of a Unix socket in this process, until the test ends.
func startSocket(t testing.TB) string {
	t.Helper()
	address := socketAddress(t)
	_, stop := runRemote(t, workers.Config{}, address)
	t.Cleanup(stop)
	return address
}

func TestSocketSharesMemory(t *testing.T) {
	address := startSocket(t)
	w := start(t, Config{Remote: []RemoteWorker{{Address: address}}})
	if s, err := w.workers[0].current(t.Context()); err != nil || s.memory == nil || s.hello.Lane == 0 {
		t.Errorf("%v; want the lane", err)
	}
	info, err := os.Stat(strings.TrimPrefix(address, "unix:"))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v; want a socket for the user and the group alone", info, err)
	}
}

// Two gateways have a worker each to themselves: what one leaves the other keeps.
func TestSocketOfTwoGateways(t *testing.T) {
	address := startSocket(t)
	first, err := Start(t.Context(), Config{Remote: []RemoteWorker{{Address: address}}, RequestArena: 64 << 20}, Deps{Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	second := start(t, Config{Remote: []RemoteWorker{{Address: address}}})
	load(t, first, spec(1, nil))
	v := load(t, second, spec(1, nil))
	defer unload(t, v)
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, results := newBatch(2, 64)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

// A gateway that writes nonsense loses what it has on the worker, and the other nothing.
func TestSocketEndsTheGatewayThatWritesNonsense(t *testing.T) {
	address := startSocket(t)
	bad := start(t, Config{Remote: []RemoteWorker{{Address: address}}, RequestArena: 64 << 20, Backoff: 5 * time.Millisecond})
	good := start(t, Config{Remote: []RemoteWorker{{Address: address}}, RequestArena: 64 << 20})
	load(t, bad, spec(1, nil))
	v := load(t, good, spec(1, nil))
	defer unload(t, v)
	s, err := bad.workers[0].current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.memory.refs.Add(1) // it stays mapped while nonsense is written
	for box := range s.memory.lane.Mailboxes() {
		s.memory.lane.Post(box, 1<<60, 64)
	}
	s.memory.drop()
	eventually(t, "its connection ends", s.isLost)
	b, results := newBatch(2, 64)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
	if n := good.States()[0].Restarts; n != 0 {
		t.Errorf("the other gateway had to connect %d times again", n)
	}
	eventually(t, "it may come again", bad.Ready)
}

// A gateway waits for its only worker, and the worker may come again after its death,
// to a socket file that the dead one left.
func TestSocketWorkerMayComeLate(t *testing.T) {
	address := socketAddress(t)
	type outcome struct {
		w   *Workers
		err error
	}
	started := make(chan outcome, 1)
	go func() {
		w, err := Start(t.Context(), Config{Remote: []RemoteWorker{{Address: address}}, Backoff: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
			RequestArena: 64 << 20}, Deps{Log: logger(t)})
		started <- outcome{w, err}
	}()
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: strings.TrimPrefix(address, "unix:"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := runRemote(t, workers.Config{}, address)
	o := <-started
	if o.err != nil {
		t.Fatal(o.err)
	}
	defer func() {
		if err := o.w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	changed := make(chan bool, 2)
	s := spec(1, nil)
	s.Changed = func(_ int, up bool) { changed <- up }
	v := load(t, o.w, s)
	stop()
	if <-changed {
		t.Error("the instance is up without its worker")
	}
	_, stop = runRemote(t, workers.Config{}, address)
	defer stop()
	if !<-changed {
		t.Error("the instance is down beside its worker")
	}
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
	unload(t, v)
}

// What can't share memory is turned away, and nothing of a connection stays open.
func TestSocketRefuses(t *testing.T) {
	address := startSocket(t)
	dial := func() *net.UnixConn {
		t.Helper()
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: strings.TrimPrefix(address, "unix:"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ended := func(c *net.UnixConn) {
		t.Helper()
		defer c.Close()
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
			t.Errorf("read %d, %v; want the end", n, err)
		}
	}
	w := start(t, Config{Remote: []RemoteWorker{{Address: address}}}) // to have all that stays open
	before := descriptors(t)
	plain := dial()
	if _, err := plain.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and a long tail of bytes")); err != nil {
		t.Fatal(err)
	}
	ended(plain)
	pipes := dial()
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shm.SendDescriptors(pipes, int(r.Fd()), int(p.Fd()), int(r.Fd()), int(p.Fd())); err != nil {
		t.Fatal(err)
	}
	ended(pipes)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(int(p.Fd()), []byte("x")); err != unix.EPIPE {
		t.Errorf("write to a pipe that the worker has no end of any more: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // gateways that come and go
		g, err := Start(t.Context(), Config{Remote: []RemoteWorker{{Address: address}}, RequestArena: 64 << 20}, Deps{Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		load(t, g, spec(1, nil))
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the worker closed what it was given", func() bool { return descriptors(t) <= before+1 })
	if !w.Ready() {
		t.Error("the worker is lost to the one that shared memory")
	}
}
