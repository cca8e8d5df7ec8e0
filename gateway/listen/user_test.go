package listen

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// loopback opens a listener on an address.
func loopback(t *testing.T, at string) (l net.Listener, port string) {
	t.Helper()
	open, err := Open(t.Context(), Config{Address: at})
	if err != nil {
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
			t.Skipf("there is no %s here", at)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open[0].Close() })
	_, port, err = net.SplitHostPort(open[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return open[0], port
}

// connected is a connection to an address, both ends of it.
func connected(t *testing.T, l net.Listener, to string) (client *net.TCPConn, server net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Skipf("no connection to %s: %v", to, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	client, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", c)
	}
	return client, server
}

func user(server net.Conn) (uid uint32, known bool) {
	_, _, peer := Remote(server.RemoteAddr())
	return peer.User()
}

// The kernel says whose the client's socket is, for either family and for a client of IPv4
// at a listener of both.
func TestUser(t *testing.T) {
	if err := CanFindUsers(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ listen, dial string }{
		{"127.0.0.1", "127.0.0.1"}, {"127.0.0.1", "[::ffff:127.0.0.1]"}, {"127.0.0.2", "127.0.0.2"}, {"::1", "[::1]"},
		{"", "127.0.0.1"}, {"", "[::1]"},
	} {
		t.Run(c.listen+" "+c.dial, func(t *testing.T) {
			l, port := loopback(t, c.listen)
			client, server := connected(t, l, c.dial+":"+port)
			if uid, known := user(server); !known || uid != uint32(os.Getuid()) {
				t.Errorf("got user %d, known %t; want %d", uid, known, os.Getuid())
			}
			at, over, _ := Remote(server.RemoteAddr())
			want := client.LocalAddr().String()
			if over || !at.Addr().Unmap().IsLoopback() || server.RemoteAddr().String() != want {
				t.Errorf("remote address %v, %s, over a Unix socket %t; want %s", at, server.RemoteAddr(), over, want)
			}
		})
	}
}

// A client that has gone is nobody: the kernel says user 0 of a socket that no process has,
// and the port may be another's soon.
func TestUserGone(t *testing.T) {
	l, port := loopback(t, "127.0.0.1")
	for name, leave := range map[string]func(c *net.TCPConn) error{
		"closed": (*net.TCPConn).Close,
		"reset":  func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
	} {
		client, server := connected(t, l, "127.0.0.1:"+port)
		if err := leave(client); err != nil {
			t.Fatal(err)
		}
		if uid, known := user(server); known {
			t.Errorf("%s: got user %d", name, uid)
		}
	}
	client, server := connected(t, l, "127.0.0.1:"+port)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, known := user(server); !known {
		t.Error("a client that has said all and reads the answer is nobody")
	}
}

// What was found first holds for the connection, whoever has its addresses and ports then.
func TestUserPortTakenOver(t *testing.T) {
	l, port := loopback(t, "127.0.0.1")
	first, server := connected(t, l, "127.0.0.1:"+port)
	asked, ok := server.RemoteAddr().(*LoopbackAddr)
	if !ok {
		t.Fatalf("%T", server.RemoteAddr())
	}
	late := &LoopbackAddr{TCPAddr: asked.TCPAddr, local: asked.local, cookie: asked.cookie}
	if _, known := asked.FindUser(); !known {
		t.Fatal("not known")
	}
	if err := errors.Join(first.SetLinger(0), first.Close()); err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: asked.TCPAddr, Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})
		return errors.Join(failed, err)
	}}
	second, err := d.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, known := asked.FindUser(); !known {
		t.Error("what was found is forgotten")
	}
	if uid, known := late.FindUser(); known {
		t.Errorf("the user %d of a later connection is taken for the first one's", uid)
	}
	if _, known := late.FindUser(); known {
		t.Error("known when asked again")
	}
}

// The socket's user counts, not the server's: a process of another user connects.
func TestUserOfAnother(t *testing.T) {
	if os.Getenv("TEST_CONNECT") != "" {
		connect(t, os.Getenv("TEST_CONNECT"))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	l, port := loopback(t, "127.0.0.1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	// By descriptor: the program's folder may be closed to the other user.
	child := exec.CommandContext(ctx, "/proc/self/fd/3", "-test.run=TestUserOfAnother", "-test.v")
	child.ExtraFiles = []*os.File{self}
	child.Dir, child.Env = "/", append(os.Environ(), "TEST_CONNECT=127.0.0.1:"+port)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}}
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	uid, known := user(server)
	if _, err := server.Write([]byte("seen")); err != nil {
		t.Error(err)
	}
	_ = server.Close()
	if err := child.Wait(); err != nil {
		t.Fatalf("the client: %v\n%s", err, &said)
	}
	if !known || uid != 4711 {
		t.Errorf("got user %d, known %t; want 4711", uid, known)
	}
}

// connect stays connected until the server has closed.
func connect(t *testing.T, to string) {
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 8)); err != nil || n != 4 {
		t.Fatal(n, err)
	}
}

// A listener on the client's port is not the client, and answers that are none are errors.
func TestDiagnose(t *testing.T) {
	l, port := loopback(t, "127.0.0.1")
	_, server := connected(t, l, "127.0.0.1:"+port)
	a, ok := server.RemoteAddr().(*LoopbackAddr)
	if !ok {
		t.Fatalf("%T", server.RemoteAddr())
	}
	if _, err := userOf(a.local, a.AddrPort(), anyCookie); err != nil {
		t.Errorf("the other end by itself: %v", err)
	}
	_, err := userOf(a.AddrPort(), a.local, a.cookie+1)
	if err == nil || !strings.Contains(err.Error(), "our own socket") {
		t.Errorf("another cookie: %v", err)
	}
	if _, err := userOf(a.local, a.local, anyCookie); err == nil {
		t.Error("a listener is taken for a client")
	}
	request := diagRequest(a.AddrPort(), a.local, anyCookie)
	for _, n := range []int{0, 4, 16, 20, 80} {
		if _, err := diagUser(make([]byte, n), request); !errors.Is(err, errAnswer) {
			t.Errorf("%d zeros: %v", n, err)
		}
	}
}

func BenchmarkUser(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	server, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	a := loopbackOf(server)
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if _, err := userOf(a.AddrPort(), a.local, a.cookie); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("later", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.FindUser()
		}
	})
	b.Run("accepted", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			loopbackOf(server)
		}
	})
}
