package listen

import (
	"net"
	"syscall"
)

// Taker reads from a connection, and tells its reader before it waits. It is for one
// reader at a time.
type Taker struct {
	raw   syscall.RawConn
	take  func(fd uintptr) bool // made once
	empty func()

	// Of the read in progress.
	p   []byte
	n   int
	err error
}

// NewTaker makes a Taker for a connection that is not encrypted, which calls empty when
// nothing has come and it is about to wait; nil where there is no socket under it.
func NewTaker(nc net.Conn, empty func()) *Taker {
	raw := socketOf(nc)
	if raw == nil {
		return nil
	}
	t := &Taker{raw: raw, empty: empty}
	t.take = func(fd uintptr) bool {
		if t.n, t.err = Receive(int(fd), t.p); t.n > 0 || t.err != nil {
			return true
		}
		t.empty()
		return false
	}
	return t
}

// Read is io.Reader's; p is not empty. It ends at the connection's deadline as its own Read
// does.
func (t *Taker) Read(p []byte) (int, error) {
	t.p, t.n, t.err = p, 0, nil
	err := t.raw.Read(t.take)
	t.p = nil
	switch {
	case err != nil:
		return 0, err
	case t.err != nil:
		return 0, t.err
	}
	return t.n, nil
}
