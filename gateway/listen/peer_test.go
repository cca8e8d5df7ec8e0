package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A connection over a Unix socket says whose process is at its other end, whatever that
// process calls its socket.
func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	all, err := Open(t.Context(), Config{Port: -1, UnixSocket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer all[0].Close()
	c, err := net.DialUnix("unix", &net.UnixAddr{Name: "@uid=0", Net: "unix"}, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server, err := all[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	at, unix, peer := Remote(server.RemoteAddr())
	if at.IsValid() || !unix || !peer.Known || peer.UID != uint32(os.Getuid()) {
		t.Errorf("got %v, Unix %t, %+v; want the user %d", at, unix, peer, os.Getuid())
	}
	if at, unix, peer := Remote(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}); at.Addr().Unmap().String() != "127.0.0.1" || at.Port() != 7 || unix || peer.Known {
		t.Errorf("TCP: got %v, %t, %+v", at, unix, peer)
	}
}
