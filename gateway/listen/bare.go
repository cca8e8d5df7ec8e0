package listen

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bare takes a socket out of Go's poller, which wakes a thread for whatever comes on the
// sockets that it has, also when nobody waits for it. On success nc is closed and the
// descriptor is the caller's; nonblocking, with the socket's options as they were.
func Bare(nc net.Conn) (fd int, err error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return -1, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	failed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return -1, fmt.Errorf("dup: %w", err)
	}
	_ = nc.Close() // the socket stays open
	return fd, nil
}

// Dress makes a net.Conn of a bare descriptor again. The descriptor is closed in any case.
func Dress(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	nc, err := net.FileConn(f)
	return nc, errors.Join(err, f.Close())
}

// dressed is a connection that was bare in between.
type dressed struct {
	net.Conn
	slot net.Conn
}

// RemoteAddr is that of the connection as it was accepted.
func (d *dressed) RemoteAddr() net.Addr { return d.slot.RemoteAddr() }

// Close closes both; the slot has no socket any more.
func (d *dressed) Close() error {
	err := d.Conn.Close()
	_ = d.slot.Close()
	return err
}

// Redress makes a connection of a descriptor that Bare gave: nc, and outer, which closes the
// slot too, the connection as it was accepted. Where that fails nc is at its end, so that
// reads and writes fail; the log hears of it on a goroutine, since it may be slow to.
func Redress(fd int, slot net.Conn, log *slog.Logger) (nc, outer net.Conn) {
	nc, err := Dress(fd)
	if err != nil {
		go log.Error("a connection is given up", "error", err)
		if nc != nil {
			_ = nc.Close()
		}
		nc, _ = net.Pipe()
		_ = nc.Close()
	}
	return nc, &dressed{nc, slot}
}

// Send writes what a bare socket takes of bufs, as Trier.Write.
func Send(fd int, bufs ...[]byte) (n int, err error) {
	n, err = send(fd, bufs)
	switch {
	case err == unix.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("write: %w", err)
	}
	return n, nil
}

// Receive reads once from a bare socket into p, which is not empty. 0 without an error:
// nothing has come. io.EOF: the peer sends no more.
func Receive(fd int, p []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(fd, p); err != unix.EINTR { // of the package that the race detector knows
			break
		}
	}
	switch {
	case err == unix.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read: %w", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
