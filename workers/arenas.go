package workers

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/shm"
)

// arenas are the memories of a lane as backends see them; it fits backend.Arenas.
type arenas struct{ requests, answers *shm.Arena }

// arenas are those of the connection's gateway; nil where it shares none.
func (c *connection) arenas() backend.Arenas {
	if c == nil || c.lane == nil {
		return nil
	}
	return arenas{c.lane.Requests, c.lane.Responses}
}

// Files fits backend.Arenas.
func (a arenas) Files() (requests, answers *os.File, err error) {
	if requests, err = duplicate(a.requests, "requests"); err != nil {
		return nil, nil, err
	}
	if answers, err = duplicate(a.answers, "answers"); err != nil {
		return nil, nil, errors.Join(err, requests.Close())
	}
	return requests, answers, nil
}

func duplicate(a *shm.Arena, name string) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(a.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "the descriptor of the memory of %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Locate fits backend.Arenas.
func (a arenas) Locate(data []byte) (answers bool, offset int64, ok bool) {
	if offset, ok = a.requests.Offset(data); ok {
		return false, offset, true
	}
	offset, ok = a.answers.Offset(data)
	return true, offset, ok
}
