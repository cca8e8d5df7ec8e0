package python

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

const (
	// longestLine bounds the lines of a process's output, in bytes; longer ones are cut into several.
	longestLine = 8 << 10
	// keptLines is how many of its last lines of stderr are kept.
	keptLines = 8
	// drainTime bounds the reading of its output when it has ended: others may hold the pipes.
	drainTime = time.Second
)

// children starts processes on a thread of its own: they are killed when that thread ends, which is
// when the worker does.
type children struct {
	starts chan func()
	done   chan struct{}
}

// newChildren starts the goroutine; close ends it.
func newChildren() *children {
	c := &children{starts: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		runtime.LockOSThread() // and the thread ends with the goroutine
		for start := range c.starts {
			start()
		}
	}()
	return c
}

// close ends the goroutine, and with its thread what it has started.
func (c *children) close() {
	close(c.starts)
	<-c.done
}

// childSpec is a process that is to be started.
type childSpec struct {
	path  string
	args  []string
	env   []string
	files []*os.File // inherited from number 3 on
	log   *slog.Logger
	level string // of the lines of its output: info, warning, error or verbose; no: they are dropped
}

// child is a process, the leader of a group of its own, whose output becomes log lines.
type child struct {
	cmd    *exec.Cmd
	log    *slog.Logger
	level  string
	exited chan struct{}
	err    error // valid after exited
	flood  flood

	mu   sync.Mutex
	over bool     // guarded by mu: its number may be another process's
	last []string // guarded by mu: of stderr
}

// start starts a process.
func (c *children) start(s childSpec) (*child, error) {
	p := &child{cmd: exec.Command(s.path, s.args...), log: s.log, level: s.level, exited: make(chan struct{})}
	p.cmd.Env, p.cmd.ExtraFiles = s.env, s.files
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var ours, theirs []*os.File
	closeAll := func(files []*os.File) (err error) {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return err
	}
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, infer.Errorf(infer.Internal, "%w", errors.Join(err, closeAll(ours), closeAll(theirs)))
		}
		ours, theirs = append(ours, r), append(theirs, w)
	}
	p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1]
	started := make(chan error, 1)
	c.starts <- func() { started <- p.cmd.Start() }
	err := <-started
	if closed := closeAll(theirs); err != nil || closed != nil {
		return nil, infer.Errorf(infer.Internal, "the Python interpreter '%s' can't be started: %w", s.path,
			errors.Join(err, closed, closeAll(ours)))
	}
	p.log = s.log.With("pid", p.Pid())
	var reading sync.WaitGroup
	reading.Go(func() { p.read(ours[0], "stdout") })
	reading.Go(func() { p.read(ours[1], "stderr") })
	go p.wait(&reading, ours)
	return p, nil
}

// wait sees to the end of the process and of its group.
func (p *child) wait(reading *sync.WaitGroup, pipes []*os.File) {
	defer close(p.exited)
	for { // it stays a zombie, whose number nobody else has
		err := unix.Waitid(unix.P_PID, p.Pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // it may be alone
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.err = p.cmd.Wait()
	late := time.AfterFunc(drainTime, func() {
		for _, f := range pipes {
			_ = f.Close() // ends who reads
		}
	})
	reading.Wait()
	if late.Stop() {
		for _, f := range pipes {
			_ = f.Close()
		}
	}
}

// read makes log lines of a pipe.
func (p *child) read(from io.Reader, stream string) {
	r := bufio.NewReaderSize(from, longestLine)
	for {
		line, err := r.ReadSlice('\n')
		if text := strings.TrimRight(string(line), "\r\n"); text != "" {
			p.line(stream, text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (p *child) line(stream, text string) {
	if stream == "stderr" {
		p.mu.Lock()
		if p.last = append(p.last, text); len(p.last) > keptLines {
			p.last = p.last[1:]
		}
		p.mu.Unlock()
	}
	say := p.log.Info
	switch p.level {
	case "no":
		return
	case "error":
		say = p.log.Error
	case "warning":
		say = p.log.Warn
	case "verbose":
		say = p.log.Debug
	}
	dropped, ok := p.flood.take(time.Now())
	switch {
	case !ok:
	case dropped > 0:
		say("model output", "stream", stream, "line", text, "dropped_before", dropped)
	default:
		say("model output", "stream", stream, "line", text)
	}
}

// How many lines of a process's output go to the log: so many at once, and then a second.
const (
	linesAtOnce = 1000
	linesASec   = 100
)

// flood bounds the lines of a process's output.
type flood struct {
	mu      sync.Mutex
	left    float64   // guarded by mu: lines that may be logged now
	at      time.Time // guarded by mu: when left was that; zero: never
	dropped int       // guarded by mu: lines since the last that was logged
}

// take says whether a line is logged, and how many were not before it.
func (f *flood) take(now time.Time) (dropped int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() {
		f.left = linesAtOnce
	} else {
		f.left = min(linesAtOnce, f.left+linesASec*now.Sub(f.at).Seconds())
	}
	f.at = now
	if f.left < 1 {
		f.dropped++
		return 0, false
	}
	f.left--
	dropped, f.dropped = f.dropped, 0
	return dropped, true
}

// Pid fits process.
func (p *child) Pid() int { return p.cmd.Process.Pid }

// Exited fits process.
func (p *child) Exited() <-chan struct{} { return p.exited }

// Err fits process.
func (p *child) Err() error {
	if p.err == nil {
		return errors.New("the process has ended")
	}
	return p.err
}

// Last fits process.
func (p *child) Last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.last, "\n")
}

// Kill fits process. What it has started goes with it.
func (p *child) Kill() {
	if err := p.signal(-p.Pid(), syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.log.Error("a Python process can't be killed", "error", err)
	}
}

// Signal fits process.
func (p *child) Signal(s syscall.Signal) error { return p.signal(p.Pid(), s) }

func (p *child) signal(pid int, s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return os.ErrProcessDone
	}
	return syscall.Kill(pid, s)
}

// Stop fits process.
func (p *child) Stop(grace time.Duration) {
	t := time.AfterFunc(grace, p.Kill)
	defer t.Stop()
	<-p.exited
}

// RSS fits process.
func (p *child) RSS() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Pid()))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}
