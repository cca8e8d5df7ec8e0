package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func passingPair(t *testing.T) (client *net.UnixConn, server *Passing) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = Pass(nc).(*Passing)
	t.Cleanup(func() { _, _, _ = client.Close(), server.Close(), l.Close() })
	return client, server
}

// memory is a descriptor, and a file by whose end of file one knows that all its copies
// are closed.
func descriptor(t *testing.T) (pass, last *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return w, r
}

func send1(t *testing.T, c *net.UnixConn, text string, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if _, _, err := c.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, c *Passing, want string) {
	t.Helper()
	b := make([]byte, 64)
	if n, err := c.Read(b); err != nil || string(b[:n]) != want {
		t.Fatalf("read %q, %v; want %q", b[:n], err, want)
	}
}

func closed(t *testing.T, last *os.File) {
	t.Helper()
	if n, err := last.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a copy of the descriptor is open: %d, %v", n, err)
	}
}

func TestPassing(t *testing.T) {
	client, server := passingPair(t)
	f, last := descriptor(t)
	send1(t, client, "one", f)
	read(t, server, "one")
	got, err := server.TakeFile()
	if err != nil || got == nil {
		t.Fatalf("got %v, %v", got, err)
	}
	if again, err := server.TakeFile(); again != nil || err != nil {
		t.Errorf("taken twice: %v, %v", again, err)
	}
	flags, err := unix.FcntlInt(got.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("it would go to children: %d, %v", flags, err)
	}
	if err := got.Close(); err != nil {
		t.Error(err)
	}
	closed(t, last)

	f, last = descriptor(t)
	send1(t, client, "two", f)
	read(t, server, "two")
	server.Drop()
	closed(t, last)

	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// Of several descriptors none is given, and none stays open.
func TestPassingMany(t *testing.T) {
	for name, at := range map[string][]int{"at once": {2}, "one by one": {1, 1}, "many": {9}} {
		t.Run(name, func(t *testing.T) {
			client, server := passingPair(t)
			var lasts []*os.File
			for _, n := range at {
				var files []*os.File
				for range n {
					f, last := descriptor(t)
					files, lasts = append(files, f), append(lasts, last)
				}
				send1(t, client, "x", files...)
				read(t, server, "x")
			}
			if f, err := server.TakeFile(); f != nil || !errors.Is(err, ErrDescriptors) {
				t.Errorf("got %v, %v", f, err)
			}
			server.Drop()
			for _, last := range lasts {
				closed(t, last)
			}
			if f, err := server.TakeFile(); f != nil || err != nil {
				t.Errorf("after the drop: %v, %v", f, err)
			}
		})
	}
}
