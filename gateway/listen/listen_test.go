package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestUnixSocketFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Port: -1, UnixSocket: file}); err == nil {
		t.Error("a plain file was replaced")
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Port: -1, UnixSocket: dead}); err == nil {
		t.Error("a living server's socket was replaced")
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), Config{Port: -1, UnixSocket: dead})
	if err != nil {
		t.Fatal("a dead server's socket was not replaced:", err)
	}
	if err := again[0].Close(); err != nil {
		t.Error(err)
	}
}

// What was opened before a failure must not stay open.
func TestNothingStaysOpen(t *testing.T) {
	first, err := Open(t.Context(), Config{Address: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	port := first[0].Addr().(*net.TCPAddr).Port
	if _, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port}); err == nil {
		t.Error("a taken port was opened")
	}
	if err := first[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port, UnixSocket: filepath.Join(t.TempDir(), "a", "b")}); err == nil {
		t.Fatal("a socket in no folder was opened")
	}
	again, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port})
	if err != nil {
		t.Fatal("the port stayed open:", err)
	}
	if err := again[0].Close(); err != nil {
		t.Error(err)
	}
}

func TestTLSFaults(t *testing.T) {
	for name, files := range map[string]TLS{"no key": {Cert: "c"}, "mutual without roots": {Cert: "c", Key: "k", Mutual: true}} {
		if err := files.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := (TLS{Cert: "/nonexistent/c", Key: "/nonexistent/k"}).Config(); err == nil {
		t.Error("files that are not there: no error")
	}
}

// Connections over a Unix socket are bounded whatever others are: each may cost a thread.
func TestUnixSocketsAreBounded(t *testing.T) {
	for _, c := range []struct{ asked, want int }{{0, maxUnix}, {16384, maxUnix}, {5, 5}} {
		all, err := Open(t.Context(), Config{Port: -1, UnixSocket: filepath.Join(t.TempDir(), "s"), MaxConnections: c.asked})
		if err != nil {
			t.Fatal(err)
		}
		if got := cap(all[0].(*limited).slots); got != c.want {
			t.Errorf("MaxConnections %d: at most %d connections, want %d", c.asked, got, c.want)
		}
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
	}
}
