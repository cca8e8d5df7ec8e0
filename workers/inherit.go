package workers

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/workers/shm"
)

// The descriptors that a gateway hands over to a worker that it starts.
const (
	inheritedConn      = 3 // a connected Unix stream socket
	inheritedRequests  = 4 // memfd: the request arena, read here
	inheritedResponses = 5 // memfd: the response arena, allocated from here
	inheritedLane      = 6 // memfd: the lane
	inheritedBell      = 7 // eventfd: wakes the gateway's reader of the lane
	inheritedPass      = 8 // socket that descriptors of clients' memory come through
)

// Inherit takes over the descriptors that a gateway handed to this process. It may be
// called once. The connection is needed; memory that can't be used is an error beside
// a valid connection, and the worker then works by the stream alone.
func Inherit() (net.Conn, *Shared, error) {
	unix.CloseOnExec(inheritedConn)
	f := os.NewFile(inheritedConn, "gateway")
	conn, err := net.FileConn(f) // a duplicate
	err = errors.Join(err, f.Close())
	if err != nil {
		return nil, nil, fmt.Errorf("inherited connection: %w", err)
	}
	if _, ok := conn.(*net.UnixConn); !ok {
		return nil, nil, errors.Join(fmt.Errorf("inherited connection: it is a %s", conn.LocalAddr().Network()), conn.Close())
	}
	s := &Shared{}
	s.Requests, err = shm.OpenArena(inheritedRequests, false)
	if err != nil {
		return conn, nil, fmt.Errorf("inherited request arena: %w", err)
	}
	if s.Responses, err = shm.OpenArena(inheritedResponses, true); err != nil {
		return conn, nil, errors.Join(fmt.Errorf("inherited response arena: %w", err), s.Requests.Close())
	}
	if s.Lane, err = shm.OpenLane(inheritedLane, inheritedBell); err != nil {
		return conn, nil, errors.Join(fmt.Errorf("inherited lane: %w", err), s.Requests.Close(), s.Responses.Close())
	}
	// A gateway that has no regions gives none, and the number may be another file's.
	if kind, err := unix.GetsockoptInt(inheritedPass, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind == unix.SOCK_SEQPACKET {
		unix.CloseOnExec(inheritedPass)
		s.Pass = os.NewFile(inheritedPass, "regions")
	}
	return conn, s, nil
}
