package listen

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// PeerAddr is the remote address of a connection that came over a Unix socket: who is at
// its other end. A process gives its socket a name as it likes, so the name is not in it.
type PeerAddr struct{ Peer infer.Peer }

// Network implements net.Addr.
func (*PeerAddr) Network() string { return "unix" }

// String implements net.Addr.
func (*PeerAddr) String() string { return "@" }

// remoteOf is the remote address of a connection, with what says who is there.
func remoteOf(c net.Conn) net.Addr {
	if a := peerOf(c); a != nil {
		return a
	}
	if a := loopbackOf(c); a != nil {
		return a
	}
	return c.RemoteAddr()
}

// peerOf asks the kernel who has connected; nil for what is no Unix socket.
func peerOf(c net.Conn) *PeerAddr {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	a := &PeerAddr{}
	raw, err := u.SyscallConn()
	if err != nil {
		return a // it is closed: nothing will come of it
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if failed == nil && err == nil {
		a.Peer = infer.Peer{Known: true, UID: cred.Uid}
	}
	return a
}

// Remote is what a front end may say of a connection's remote address: its port, or that
// it is a Unix socket, and who is there.
func Remote(a net.Addr) (at netip.AddrPort, over bool, peer infer.Peer) {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort(), false, infer.Peer{}
	case *LoopbackAddr:
		return a.AddrPort(), false, infer.Peer{Finder: a}
	case *PeerAddr:
		return netip.AddrPort{}, true, a.Peer
	case *net.UnixAddr:
		return netip.AddrPort{}, true, infer.Peer{}
	}
	return netip.AddrPort{}, false, infer.Peer{}
}
