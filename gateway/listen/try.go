package listen

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Trier writes to a connection without ever waiting for its peer. It is for one writer
// at a time.
type Trier struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // made once

	// Of the write in progress.
	bufs [][]byte
	n    int
	err  error
}

// NewTrier makes a Trier for a connection that is not encrypted; nil where there is no
// socket under it.
func NewTrier(nc net.Conn) *Trier {
	raw := socketOf(nc)
	if raw == nil {
		return nil
	}
	t := &Trier{raw: raw}
	t.try = func(fd uintptr) bool {
		t.n, t.err = send(int(fd), t.bufs)
		return true
	}
	return t
}

// socketOf is the socket under a connection; nil where there is none.
func socketOf(nc net.Conn) syscall.RawConn {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// mostPieces is how many pieces the kernel takes in one write.
const mostPieces = 1024

func send(fd int, bufs [][]byte) (n int, err error) {
	bufs = bufs[:min(len(bufs), mostPieces)]
	for {
		if len(bufs) == 1 {
			n, err = unix.Write(fd, bufs[0])
		} else {
			n, err = unix.Writev(fd, bufs)
		}
		if err != unix.EINTR {
			return n, err
		}
	}
}

// Write writes what the socket takes of bufs, which it does not change. n is how much;
// less than all of it without an error is a socket that is full.
func (t *Trier) Write(bufs ...[]byte) (n int, err error) {
	t.bufs, t.n, t.err = bufs, 0, nil
	err = t.raw.Write(t.try)
	t.bufs = nil
	switch {
	case err != nil:
		return 0, err
	case t.err == unix.EAGAIN:
		return 0, nil
	case t.err != nil:
		return 0, fmt.Errorf("write: %w", t.err)
	}
	return t.n, nil
}

// Rest is what is left of bufs behind their first n bytes; it uses bufs' own memory.
func Rest(bufs [][]byte, n int) net.Buffers {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
