package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials/insecure"
)

// programPoll is how long a program's socket is looked for anew, the first time; each time
// after it takes twice as long, up to programPollMost.
const (
	programPoll     = 5 * time.Millisecond
	programPollMost = 200 * time.Millisecond
)

// maxSocketPath is the longest path of a Unix socket. Source: sockaddr_un, unix(7).
const maxSocketPath = 107

// openProgram starts a worker program and connects to it. The program is run as
//
//	PROGRAM --listen=unix:PATH
//
// and serves protocol 2 at the Unix socket PATH, in a folder that nobody else may enter,
// until its standard input ends. No memory is shared with it.
func (s *session) openProgram(ctx context.Context, c *Config, w LocalWorker) error {
	ctx, stop := context.WithTimeout(ctx, c.StartTimeout)
	defer stop()
	dir, err := os.MkdirTemp("", "sluice-worker-")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "socket")
	if len(path) > maxSocketPath {
		err = fmt.Errorf("the path %s is too long for a Unix socket: give a shorter TMPDIR", path)
	} else {
		err = s.startProgram(w, path)
	}
	if err == nil {
		err = s.dialProgram(ctx, path)
	}
	// The one connection is there, or will not be: nothing of the folder is left.
	return errors.Join(err, os.RemoveAll(dir))
}

// startProgram starts the process of a worker program. A goroutine waits for it, and fails
// the session when it has ended.
func (s *session) startProgram(w LocalWorker, path string) error {
	cmd := exec.Command(w.Path, append([]string{"--listen=unix:" + path}, w.Args...)...)
	cmd.Env = w.Env
	cmd.Stdout = &lineLog{log: s.log, stream: "stdout"}
	cmd.Stderr = &lineLog{log: s.log, stream: "stderr"}
	cmd.WaitDelay = time.Second                           // a grandchild may hold its output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it starts ends with it
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the program: %w", err), input.Close())
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	s.process, s.input = p, input
	go func() {
		err := p.wait()
		close(p.done)
		if err == nil {
			err = errors.New("exit status 0")
		}
		s.fail(fmt.Errorf("process ended: %w", err))
	}()
	return nil
}

// dialProgram connects to the socket as soon as the program listens there.
func (s *session) dialProgram(ctx context.Context, path string) error {
	var d net.Dialer
	for wait := programPoll; ; wait = min(2*wait, programPollMost) {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			if err := s.own(conn); err != nil {
				return err
			}
			return s.connect("worker", insecure.NewCredentials(), func(context.Context) (net.Conn, error) { return conn, nil })
		}
		select {
		case <-s.lost:
			return s.cause
		case <-ctx.Done():
			return fmt.Errorf("the program does not listen at its socket: %w", err)
		case <-time.After(wait):
		}
	}
}
