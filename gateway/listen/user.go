package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// LoopbackAddr is the remote address of a TCP connection from a loopback address. It finds
// the user at the other end when somebody asks for it, once.
type LoopbackAddr struct {
	*net.TCPAddr
	local  netip.AddrPort // ours
	cookie uint64         // of our socket, which no other socket of this boot has

	found atomic.Uint64 // 0: not asked yet; else a flag, and the user
}

// The flags of LoopbackAddr.found.
const (
	userKnown   = 1 << 32
	userUnknown = 2 << 32
)

// loopbackOf is the address of a TCP connection from a loopback address; nil for others, and
// where the kernel has no word on whose our own socket is.
func loopbackOf(c net.Conn) *LoopbackAddr {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	remote, ok := t.RemoteAddr().(*net.TCPAddr)
	if !ok || !remote.IP.IsLoopback() {
		return nil
	}
	local, ok := t.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	a := &LoopbackAddr{TCPAddr: remote, local: local.AddrPort()}
	failed := raw.Control(func(fd uintptr) {
		a.cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if failed != nil || err != nil {
		return nil
	}
	return a
}

// FindUser implements infer.UserFinder: the user who made the client's socket. It makes some
// system calls that do not wait, at the first call. The user is not known where the client
// has closed its socket, where the socket is in another network namespace, and where the
// kernel has no sock_diag. Any number of goroutines may call it.
func (a *LoopbackAddr) FindUser() (uid uint32, known bool) {
	found := a.found.Load()
	if found == 0 {
		uid, err := userOf(a.AddrPort(), a.local, a.cookie)
		switch {
		case err == nil:
			found = userKnown | uint64(uid)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM),
			errors.Is(err, unix.ENOBUFS):
			return 0, false // it may be found at the next call
		default:
			found = userUnknown
		}
		if !a.found.CompareAndSwap(0, found) {
			found = a.found.Load() // what another goroutine found first holds for all
		}
	}
	return uint32(found), found&userKnown != 0
}

// CanFindUsers says whether this kernel tells of sockets' users at all. It has the kernel
// load what it needs for that, so that FindUser does not wait for it.
func CanFindUsers() error {
	nobody := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	if _, err := userOf(nobody, nobody, anyCookie); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// userOf asks the kernel for the user of the socket at the other end of a connection, the
// client's, whose local address is remote. It then asks whether our own socket, which has
// the cookie, is still connected: as long as it is, nobody else can have a connection of the
// same addresses and ports, so the socket that was found before is the other end.
func userOf(remote, local netip.AddrPort, cookie uint64) (uid uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("sock_diag: %w", err)
	}
	defer unix.Close(fd)
	// The kernel has answered when Sendto returns: the limit is for the case that one does not.
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
		return 0, fmt.Errorf("sock_diag: %w", err)
	}
	if uid, err = diagnose(fd, remote, local, anyCookie); err != nil {
		return 0, fmt.Errorf("the client's socket: %w", err)
	}
	if _, err = diagnose(fd, local, remote, cookie); err != nil {
		return 0, fmt.Errorf("our own socket: %w", err)
	}
	return uid, nil
}
