package shm

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// handoverText stands before everything else on a named socket between a gateway and
// a worker; the descriptors ride on it. Its last byte is the version.
const handoverText = "sluice shared memory\x02"

// maxHandover bounds the descriptors of one handover.
const maxHandover = 8

// SendDescriptors hands descriptors to the process at the other end of a fresh Unix
// socket, in whatever container that runs. The caller keeps its own.
func SendDescriptors(conn *net.UnixConn, fds ...int) error {
	n, oob, err := conn.WriteMsgUnix([]byte(handoverText), unix.UnixRights(fds...), nil)
	if err != nil {
		return fmt.Errorf("shm: hand over descriptors: %w", err)
	}
	if n != len(handoverText) || oob == 0 {
		return fmt.Errorf("shm: hand over descriptors: %d of %d bytes were sent", n, len(handoverText))
	}
	return nil
}

// ReceiveDescriptors takes over exactly want descriptors that SendDescriptors sent; the
// caller closes them. It reads no byte more than the handover, and leaves no descriptor
// open when it fails. Bound it with a deadline.
func ReceiveDescriptors(conn *net.UnixConn, want int) ([]int, error) {
	text := make([]byte, len(handoverText))
	oob := make([]byte, unix.CmsgSpace(4*maxHandover))
	var fds []int
	var err error
	for at := 0; at < len(text) && err == nil; {
		var n, ctl, flags int
		n, ctl, flags, _, err = conn.ReadMsgUnix(text[at:], oob) // close on exec is set
		more, parseErr := descriptors(oob[:ctl])
		fds = append(fds, more...)
		switch {
		case err != nil:
		case parseErr != nil:
			err = parseErr
		case flags&unix.MSG_CTRUNC != 0:
			err = errors.New("more descriptors than a worker takes")
		}
		at += n
	}
	switch {
	case err != nil:
	case string(text) != handoverText:
		err = errors.New("the peer is no gateway, or one of another version")
	case len(fds) != want:
		err = fmt.Errorf("%d descriptors came, want %d", len(fds), want)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: take over descriptors: %w", err), CloseDescriptors(fds...))
	}
	return fds, nil
}

func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var fds []int
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, fmt.Errorf("control message: %w", err)
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// CloseDescriptors closes all of them.
func CloseDescriptors(fds ...int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
