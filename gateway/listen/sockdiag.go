package listen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// anyCookie is INET_DIAG_NOCOOKIE.
const anyCookie = 1<<64 - 1

// Where sock_diag's messages have what. An answer begins with family and state; user and
// inode stand at its end.
// Source: struct nlmsghdr of linux/netlink.h; inet_diag_req_v2, inet_diag_sockid and
// inet_diag_msg of linux/inet_diag.h.
const (
	diagRequestSize = diagRequestID + diagIDSize
	diagIDSize      = 48
	diagRequestID   = unix.NLMSG_HDRLEN + 8
	diagAnswerID    = 4 // behind the header; it begins with both ports
	diagUID         = 64
	diagInode       = 68
	diagAnswerSize  = 72
)

var (
	errNotConnected = errors.New("the socket is not connected")
	errAnswer       = errors.New("the answer is not to what was asked")
)

// diagnose finds the user of the connected socket of this network namespace that has the
// address from and whose peer has the address to.
// Errors: ENOENT or ESTALE where there is none with the cookie; errNotConnected
// for one that no process has any more, of which the kernel may say that it is root's.
func diagnose(fd int, from, to netip.AddrPort, cookie uint64) (uid uint32, err error) {
	request := diagRequest(from, to, cookie)
	if err = unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	var answer [4096]byte
	n, sender, err := unix.Recvfrom(fd, answer[:], 0)
	for err == unix.EINTR {
		n, sender, err = unix.Recvfrom(fd, answer[:], 0)
	}
	if err != nil {
		return 0, err
	}
	if kernel, ok := sender.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
		return 0, errAnswer
	}
	return diagUser(answer[:n], request)
}

// diagRequest asks for one TCP socket.
func diagRequest(from, to netip.AddrPort, cookie uint64) []byte {
	b := make([]byte, 0, diagRequestSize)
	b = binary.NativeEndian.AppendUint32(b, diagRequestSize)
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, 0) // sequence: each socket asks one thing at a time
	b = binary.NativeEndian.AppendUint32(b, 0) // to the kernel
	a, z := from.Addr().Unmap(), to.Addr().Unmap()
	family := byte(unix.AF_INET)
	if !a.Is4() || !z.Is4() {
		family = unix.AF_INET6
	}
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 1<<32-1) // states: it looks at none here
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	for _, address := range []netip.Addr{a, z} {
		var sixteen [16]byte
		if family == unix.AF_INET {
			copy(sixteen[:], address.AsSlice())
		} else {
			sixteen = address.As16()
		}
		b = append(b, sixteen[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0) // of any interface
	b = binary.NativeEndian.AppendUint32(b, uint32(cookie))
	return binary.NativeEndian.AppendUint32(b, uint32(cookie>>32))
}

// diagUser reads the answer to a request.
func diagUser(answer, request []byte) (uint32, error) {
	if len(answer) < unix.NLMSG_HDRLEN {
		return 0, errAnswer
	}
	kind, body := binary.NativeEndian.Uint16(answer[4:]), answer[unix.NLMSG_HDRLEN:]
	if kind == unix.NLMSG_ERROR && len(body) >= 4 {
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	}
	if kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < diagAnswerSize ||
		!bytes.Equal(body[diagAnswerID:diagAnswerID+4], request[diagRequestID:diagRequestID+4]) {
		return 0, errAnswer
	}
	switch body[1] {
	case unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2, unix.BPF_TCP_CLOSE_WAIT,
		unix.BPF_TCP_LAST_ACK, unix.BPF_TCP_CLOSING:
	default: // a listener on the port too is found where no connection is
		return 0, errNotConnected
	}
	if binary.NativeEndian.Uint32(body[diagInode:]) == 0 {
		return 0, errNotConnected
	}
	return binary.NativeEndian.Uint32(body[diagUID:]), nil
}
