package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// NewPass makes the socket that descriptors of clients' memory go through from a gateway
// to a worker, one in each message, beside the call that names it. The caller closes both
// ends; the worker's is inherited by it, or handed over.
func NewPass() (gateway, worker int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("shm: socketpair: %w", err)
	}
	return fds[0], fds[1], nil
}

// PassFile sends a descriptor under a number; the caller keeps its own. It does not block.
func PassFile(pass int, token uint64, file int) error {
	text := binary.LittleEndian.AppendUint64(nil, token)
	if err := unix.Sendmsg(pass, text, unix.UnixRights(file), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("shm: pass a descriptor: %w", err)
	}
	return nil
}

// Taker takes descriptors out of a worker's end of the socket. The zero value is ready; it
// is safe for concurrent use.
type Taker struct {
	mu    sync.Mutex
	ahead map[uint64]int // guarded by mu: descriptors of calls that come later, by number
	ended bool           // guarded by mu: the socket may be closed
}

// Take takes the descriptor that was sent under a number, which the caller then owns. Those
// before it are of calls that were given up, and are closed. It does not block: the
// descriptor is there before the call that names it.
func (t *Taker) Take(pass int, token uint64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd, err := t.takeLocked(pass, token)
	if err == nil && fd < 0 {
		err = errNone
	}
	return fd, err
}

// Drop closes the descriptors up to a number that nobody took: their calls were given up.
func (t *Taker) Drop(pass int, token uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd, err := t.takeLocked(pass, token)
	if err != nil || fd < 0 {
		return err
	}
	return CloseDescriptors(fd)
}

var errNone = errors.New("shm: no such descriptor was passed")

// takeLocked closes the descriptors before a number and returns the one under it, or -1.
func (t *Taker) takeLocked(pass int, token uint64) (int, error) {
	if t.ended {
		return -1, nil
	}
	for n, fd := range t.ahead {
		if n > token {
			continue
		}
		delete(t.ahead, n)
		if n == token {
			return fd, nil
		}
		if err := CloseDescriptors(fd); err != nil {
			return -1, err
		}
	}
	for {
		fd, got, err := takeNext(pass)
		switch {
		case errors.Is(err, errNone):
			return -1, nil
		case err != nil:
			return -1, err
		case got == token:
			return fd, nil
		case got > token: // this call was given up, and comes late
			if t.ahead == nil {
				t.ahead = map[uint64]int{}
			}
			t.ahead[got] = fd
			continue
		}
		if err := CloseDescriptors(fd); err != nil {
			return -1, err
		}
	}
}

// Close closes what nobody took, and ends the use of the socket: calls that come later
// find nothing.
func (t *Taker) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, fd := range t.ahead {
		errs = append(errs, unix.Close(fd))
	}
	t.ahead, t.ended = nil, true
	return errors.Join(errs...)
}

func takeNext(pass int) (fd int, token uint64, err error) {
	var text [8]byte
	oob := make([]byte, unix.CmsgSpace(4*maxHandover))
	n, ctl, flags, _, err := unix.Recvmsg(pass, text[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case errors.Is(err, unix.EINTR):
		return takeNext(pass)
	case errors.Is(err, unix.EAGAIN), err == nil && n == 0 && ctl == 0:
		return -1, 0, errNone
	case err != nil:
		return -1, 0, fmt.Errorf("shm: take a descriptor: %w", err)
	}
	fds, err := descriptors(oob[:ctl])
	if err == nil && (n != len(text) || len(fds) != 1 || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0) {
		err = fmt.Errorf("a message of %d bytes with %d descriptors", n, len(fds))
	}
	if err != nil {
		return -1, 0, errors.Join(fmt.Errorf("shm: take a descriptor: %w", err), CloseDescriptors(fds...))
	}
	return fds[0], binary.LittleEndian.Uint64(text[:]), nil
}
