// Package listen opens what front ends listen on: TCP ports, Unix sockets, and the TLS
// over them. All protocols take the same settings, so it is in one place.
//
// It has no goroutine; what it returns is the caller's to close.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where to listen.
type Config struct {
	Address   string // "" is every address
	Port      int    // 0: one that is free; -1: no TCP listener
	ReusePort bool   // let other processes listen on the same port
	// UnixSocket is the path of a socket to listen on as well; "" is none. A socket file
	// that nobody answers on is replaced.
	UnixSocket string
	// MaxConnections bounds each listener's open connections, further ones wait; 0: no
	// bound. A Unix socket has maxUnix at most.
	MaxConnections int
	// Count, if set, counts the connections of all listeners.
	Count *Count
	// Descriptors, if set, keeps some back from the connections.
	Descriptors *Descriptors
}

// Open opens the listeners, TCP first. On an error none stays open.
func Open(ctx context.Context, c Config) ([]net.Listener, error) {
	var open []net.Listener
	add := func(l net.Listener, err error) error {
		if err == nil {
			limited := limit(l, c.most(l), c.Count)
			limited.files = c.Descriptors
			open = append(open, limited)
		}
		return err
	}
	var err error
	if c.Port >= 0 {
		lc := net.ListenConfig{KeepAlive: 30 * time.Second}
		if c.ReusePort {
			lc.Control = reusePort
		}
		err = add(lc.Listen(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(c.Port))))
	}
	if err == nil && c.UnixSocket != "" {
		err = add(listenUnix(ctx, c.UnixSocket))
	}
	if err != nil {
		for _, l := range open {
			err = errors.Join(err, l.Close())
		}
		return nil, err
	}
	return open, nil
}

// maxUnix bounds the connections over one Unix socket. With a message a peer may pass a
// descriptor whose closing waits as long as the peer likes (a TCP socket with SO_LINGER, a
// file of FUSE), whether we take it or the kernel drops it: a connection may cost a thread,
// and a Go process ends at 10000.
const maxUnix = 2048

// most is the bound of one listener; 0: none.
func (c *Config) most(l net.Listener) int {
	if l.Addr().Network() == "unix" && (c.MaxConnections <= 0 || c.MaxConnections > maxUnix) {
		return maxUnix
	}
	return c.MaxConnections
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(err, failed)
}

// listenUnix replaces a socket file that a dead server left behind, and nothing else.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	var lc net.ListenConfig
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return lc.Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("%s exists and is no socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return nil, errors.Join(fmt.Errorf("another server listens on %s", path), c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, "unix", path)
}
