package workers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/internal/probe"
	"github.com/sluice-serve/sluice/workers/shm"
)

// handoverTime bounds what comes before the first call on a Unix socket.
const handoverTime = 10 * time.Second

// socketMode lets the worker's user and group connect, and nobody else.
const socketMode = 0o660

// handover takes over the memory that a gateway sends over a Unix socket before it
// speaks gRPC. It stands where TLS stands on TCP: gRPC calls it on the connection's own
// goroutine.
type handover struct{ worker *Worker }

// ServerHandshake fits credentials.TransportCredentials.
func (h handover) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.receive(raw)
	if err != nil {
		if !errors.Is(err, io.EOF) { // a probe says nothing
			h.worker.log.Warn("a connection is refused: who made it did not share memory", "error", err)
		}
		return nil, nil, errors.Join(err, raw.Close())
	}
	return conn, info, nil
}

func (h handover) receive(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*connection)
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T", raw)
	}
	socket, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("a connection over %s", c.LocalAddr().Network())
	}
	fds, err := shm.ReceiveDescriptors(socket, len([...]int{inheritedRequests, inheritedResponses, inheritedLane, inheritedBell, inheritedPass}))
	if err != nil {
		return nil, nil, err
	}
	shared, err := openShared([5]int(fds))
	if err != nil {
		return nil, nil, err
	}
	if !c.share(newLane(*shared, h.worker.config.MemoryWait)) {
		return nil, nil, errors.Join(net.ErrClosed, shared.Close())
	}
	return insecure.NewCredentials().ServerHandshake(c)
}

// ClientHandshake fits credentials.TransportCredentials; a worker calls nobody.
func (h handover) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a worker is no client")
}

// Info fits credentials.TransportCredentials.
func (h handover) Info() credentials.ProtocolInfo { return insecure.NewCredentials().Info() }

// Clone fits credentials.TransportCredentials.
func (h handover) Clone() credentials.TransportCredentials { return h }

// OverrideServerName fits credentials.TransportCredentials.
func (h handover) OverrideServerName(string) error { return nil }

// openShared maps what was handed over: request arena, response arena, lane, bell and the
// socket of regions, in this order. It owns the descriptors.
func openShared(fds [5]int) (*Shared, error) {
	s := &Shared{}
	var err error
	if s.Requests, err = shm.OpenArena(fds[0], false); err != nil {
		return nil, errors.Join(fmt.Errorf("request arena: %w", err), shm.CloseDescriptors(fds[:]...))
	}
	if s.Responses, err = shm.OpenArena(fds[1], true); err != nil {
		return nil, errors.Join(fmt.Errorf("response arena: %w", err), s.Requests.Close(), shm.CloseDescriptors(fds[1:]...))
	}
	if s.Lane, err = shm.OpenLane(fds[2], fds[3]); err != nil {
		return nil, errors.Join(fmt.Errorf("lane: %w", err), s.Requests.Close(), s.Responses.Close(), shm.CloseDescriptors(fds[4]))
	}
	s.Pass = os.NewFile(uintptr(fds[4]), "regions")
	return s, nil
}

// listenSocket listens at path, where a dead worker's socket may lie, and nothing else.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is no socket", path)
	default:
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("another worker listens on %s", path), c.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// probeTime bounds Probe.
const probeTime = 2 * time.Second

// Probe returns nil when a worker that listens at an address of Config.Listen lives: it
// accepts a connection and reacts to its end.
func Probe(ctx context.Context, address string) error {
	network, at := "tcp", address
	if path, ok := SocketPath(address); ok {
		network, at = "unix", path
	}
	ctx, stop := context.WithTimeout(ctx, probeTime)
	defer stop()
	return probe.Reacts(ctx, network, at)
}
