package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Passing is a connection over a Unix socket whose peer may pass descriptors beside the
// bytes. It keeps the last one until it is taken or dropped; any others are closed as
// they come.
type Passing struct {
	*net.UnixConn
	raw  syscall.RawConn
	read func(fd uintptr) bool // made once
	oob  []byte                // for the messages of one read

	// Of the read in progress.
	p   []byte
	n   int
	err error

	mu   sync.Mutex
	file *os.File // mu; nil: none
	many bool     // mu; more than one came
}

// Pass is a Passing over a Unix socket, and nc where it is none.
func Pass(nc net.Conn) net.Conn {
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return nc
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nc
	}
	c := &Passing{UnixConn: u, raw: raw, oob: make([]byte, unix.CmsgSpace(4))}
	c.read = func(fd uintptr) bool {
		c.n, c.err = c.receive(int(fd), c.p)
		return c.err != unix.EAGAIN
	}
	return c
}

// Read implements net.Conn.
func (c *Passing) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.p, c.n, c.err = p, 0, nil
	err := c.raw.Read(c.read)
	c.p = nil
	switch {
	case err != nil:
		return 0, err
	case c.err != nil:
		return 0, os.NewSyscallError("recvmsg", c.err)
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// receive reads once, without waiting.
func (c *Passing) receive(fd int, p []byte) (int, error) {
	for {
		n, oobn, flags, _, err := unix.Recvmsg(fd, p, c.oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
			c.came(c.oob[:oobn], flags&unix.MSG_CTRUNC != 0)
		}
		return n, nil
	}
}

// came takes in what was beside the bytes; cut: it was more than there was room for.
func (c *Passing) came(oob []byte, cut bool) {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		if some, wrong := unix.ParseUnixRights(&messages[i]); wrong == nil { // others carry none
			fds = append(fds, some...)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.many = c.many || cut || err != nil || len(fds) > 1 || len(fds) == 1 && c.file != nil
	for _, fd := range fds {
		if c.many {
			_ = unix.Close(fd) // it is nobody's
			continue
		}
		c.file = os.NewFile(uintptr(fd), "passed")
	}
}

// ErrDescriptors says that more than one descriptor came.
var ErrDescriptors = errors.New("more than one descriptor was passed")

// TakeFile gives the descriptor that came, which is then the caller's; nil: none did.
func (c *Passing) TakeFile() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.many {
		return nil, ErrDescriptors
	}
	f := c.file
	c.file = nil
	return f, nil
}

// Drop closes what came and was not taken.
func (c *Passing) Drop() {
	c.mu.Lock()
	f := c.file
	c.file, c.many = nil, false
	c.mu.Unlock()
	if f != nil {
		_ = f.Close() // nobody asked for it
	}
}
