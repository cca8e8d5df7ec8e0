package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/workers/shm"
	"golang.org/x/sys/unix"
)

// process is a running worker process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended and was waited for

	mu     sync.Mutex
	reaped bool // guarded by mu: its number may belong to another
}

// startProcess starts a worker and returns the gateway's end of its socket. A
// goroutine waits for the process, and calls ended with how it ended.
func startProcess(w LocalWorker, files []int, log *slog.Logger, ended func(error)) (*process, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "worker socket")
	inherited := []*os.File{os.NewFile(uintptr(fds[1]), "gateway socket")}
	defer func() {
		for _, f := range inherited {
			_ = f.Close() // ours were duplicates; nothing was written
		}
	}()
	conn, err := net.FileConn(ours) // duplicates it
	err = errors.Join(err, ours.Close())
	if err != nil {
		return nil, nil, fmt.Errorf("worker socket: %w", err)
	}
	for _, fd := range files {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("duplicate a descriptor: %w", err), conn.Close())
		}
		inherited = append(inherited, os.NewFile(uintptr(d), "shared memory"))
	}
	cmd := exec.Command(w.Path, append([]string{"--inherited", "--device=" + w.name()}, w.Args...)...)
	cmd.Env = w.Env
	cmd.ExtraFiles = inherited
	cmd.Stdout = &lineLog{log: log, stream: "stdout"}
	cmd.Stderr = &lineLog{log: log, stream: "stderr"}
	cmd.WaitDelay = time.Second // a grandchild may hold its output open
	// A group of its own: signals for the gateway's are not for it, and what it
	// starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start worker: %w", err), conn.Close())
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		err := p.wait()
		close(p.done)
		ended(err)
	}()
	return p, conn, nil
}

// shared duplicates are handed over in this order, from descriptor 4 on.
func sharedFiles(requests *shm.Arena, m *peerMemory, pass int) []int {
	return []int{requests.FD(), m.responses.FD(), m.lane.FD(), m.lane.Bell(), pass}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// wait returns when the process has ended, after ending what it had started.
func (p *process) wait() error {
	var err error = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	p.mu.Lock()
	if err == nil { // else nobody knows whose the number is
		p.killLocked()
	}
	p.reaped = true
	p.mu.Unlock()
	return p.cmd.Wait()
}

// kill ends the process and what it started.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.killLocked()
	}
}

// ESRCH: all of its group have ended.
func (p *process) killLocked() { _ = unix.Kill(-p.pid(), unix.SIGKILL) }

// end waits until the process ended by itself, or kills it when grace is over.
func (p *process) end(grace time.Duration) {
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
		return
	case <-t.C:
	}
	p.kill()
	<-p.done
}

// lineLog passes on what a process prints, line by line.
type lineLog struct {
	log    *slog.Logger
	stream string

	mu   sync.Mutex
	line []byte // guarded by mu: the line so far
}

const maxLine = 16 << 10

// pass logs one line: a record of the worker's own log as such a record, anything else
// (what a native library prints) as it is.
func (l *lineLog) pass(line []byte) {
	var record map[string]any
	if line[0] != '{' || json.Unmarshal(line, &record) != nil {
		l.log.Info("worker output", "stream", l.stream, "line", string(line))
		return
	}
	write := l.log.Info
	switch record[slog.LevelKey] {
	case slog.LevelError.String():
		write = l.log.Error
	case slog.LevelWarn.String():
		write = l.log.Warn
	case slog.LevelDebug.String():
		write = l.log.Debug
	}
	text := fmt.Sprint(record[slog.MessageKey])
	for _, key := range []string{slog.TimeKey, slog.LevelKey, slog.MessageKey} {
		delete(record, key)
	}
	var attrs []any
	for _, key := range slices.Sorted(maps.Keys(record)) {
		attrs = append(attrs, key, record[key])
	}
	write(text, attrs...)
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range p {
		if c != '\n' {
			l.line = append(l.line, c)
			if len(l.line) < maxLine {
				continue
			}
		}
		if len(l.line) > 0 {
			l.pass(l.line)
			l.line = l.line[:0]
		}
	}
	return len(p), nil
}
