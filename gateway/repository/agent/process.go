package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/infer"
)

// Limits of what an executable may write.
const (
	maxAnswer = 64 << 10 // bytes of standard output
	maxLine   = 4 << 10  // bytes of one line of standard error
	maxLines  = 200      // lines of standard error that reach the log
)

// program is the name of an agent's executable in its folder.
const program = "agent"

// Question is the JSON that an executable reads from its standard input.
type Question struct {
	Protocol   int               `json:"protocol"` // 1
	Event      Event             `json:"event"`
	Agent      string            `json:"agent"`
	Model      string            `json:"model"`
	Location   string            `json:"location"` // the model's folder as the agents before left it
	Scratch    string            `json:"scratch"`  // an empty folder of this load; removed after LOAD_FAIL and UNLOAD_COMPLETE
	Parameters map[string]string `json:"parameters"`
	Config     json.RawMessage   `json:"config"` // ModelConfig as protobuf's JSON
}

// Answer is the JSON that it writes to its standard output; nothing at all is an empty
// one. Only LOAD takes a location.
type Answer struct {
	Location string `json:"location,omitempty"` // scratch, or a folder in it, in place of the model's
	Error    string `json:"error,omitempty"`    // refuses the load
}

// Environment is what executables see of the environment: PATH, LANG, TZ, TMPDIR, and
// what begins with SLUICE_AGENT_, where keys and their like may come from.
func Environment(environ []string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "SLUICE_AGENT_") || slices.Contains([]string{"LANG", "TZ", "TMPDIR"}, name) {
			env = append(env, e)
		}
	}
	return env
}

// process is an agent that is an executable.
type process struct {
	path  string
	dir   string
	env   []string
	log   *slog.Logger
	limit time.Duration
}

// find looks an agent up by its name. Errors are InvalidArg, with the original's words
// where no such agent is there.
func (a *Agents) find(name string) (runner, error) {
	if name == Checksum {
		return checksum{}, nil
	}
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\\\x00") {
		return nil, infer.Errorf(infer.InvalidArg, "'%s' is no name of a repo agent", name)
	}
	dir := filepath.Join(a.cfg.Directory, name)
	path := filepath.Join(dir, program)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err := fmt.Errorf("unable to find '%s' for repo agent '%s', searched: %s", program, name, a.cfg.Directory)
		if library := "libtritonrepoagent_" + name + ".so"; exists(filepath.Join(dir, library)) {
			err = fmt.Errorf("%w; '%s' is there, but such libraries are not loaded", err, library)
		}
		return nil, infer.Errorf(infer.InvalidArg, "%w", err)
	}
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "repo agent '%s': %w", name, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return nil, infer.Errorf(infer.InvalidArg, "repo agent '%s': '%s' is not executable", name, path)
	}
	for _, p := range []string{dir, path} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm()&0o002 != 0 {
			return nil, infer.Errorf(infer.InvalidArg, "repo agent '%s': everybody may write '%s'; it is not started", name, p)
		}
	}
	return &process{path: path, dir: dir, env: a.cfg.Environ, log: a.log, limit: a.cfg.Timeout}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run starts the executable in a process group of its own, hands it the event, and ends
// the whole group when it has answered or the context is over.
func (p *process) run(ctx context.Context, c *call) (string, error) {
	question, err := newQuestion(c)
	if err != nil {
		return "", infer.Errorf(infer.Internal, "repo agent '%s': %w", c.agent, err)
	}
	stdout := &bounded{left: maxAnswer}
	stderr := &lines{log: p.log.With("agent", c.agent, "model", c.model.Name)}
	err = p.exec(ctx, question, stdout, stderr)
	stderr.end()
	if cause := ctx.Err(); cause != nil {
		if errors.Is(cause, context.DeadlineExceeded) {
			return "", infer.Errorf(infer.Unavailable, "repo agent '%s' did not answer %s in %s; it was ended", c.agent, c.event, p.limit)
		}
		return "", infer.Errorf(infer.Cancelled, "repo agent '%s' was ended: %w", c.agent, context.Cause(ctx))
	}
	if stdout.over {
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s' answered %s with more than %d bytes", c.agent, c.event, maxAnswer)
	}
	answer, parse := parseAnswer(stdout.kept.Bytes())
	switch {
	case parse == nil && answer.Error != "":
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s': %s", c.agent, answer.Error)
	case err != nil && stderr.last != "":
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s' failed on %s: %w: %s", c.agent, c.event, err, stderr.last)
	case err != nil:
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s' failed on %s: %w", c.agent, c.event, err)
	case parse != nil:
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s' answered %s with what is no answer: %w", c.agent, c.event, parse)
	case answer.Location != "" && c.event != Load:
		return "", infer.Errorf(infer.InvalidArg, "repo agent '%s': the location can only be changed on %s, not on %s", c.agent, Load, c.event)
	}
	return answer.Location, nil
}

func newQuestion(c *call) ([]byte, error) {
	config, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c.model.Config)
	if err != nil {
		return nil, err
	}
	parameters := c.parameters
	if parameters == nil {
		parameters = map[string]string{}
	}
	return json.Marshal(Question{Protocol: 1, Event: c.event, Agent: c.agent, Model: c.model.Name, Location: c.location,
		Scratch: c.scratch, Parameters: parameters, Config: config})
}

func parseAnswer(text []byte) (Answer, error) {
	var a Answer
	if len(bytes.TrimSpace(text)) == 0 {
		return a, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, errors.New("something follows the JSON object")
	}
	return a, nil
}

// exec runs the process until it has ended; what is left of its group is killed before
// its number can belong to another.
func (p *process) exec(ctx context.Context, question []byte, stdout, stderr io.Writer) error {
	// Pdeathsig is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(p.path)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(question), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // for pipes that a process outside the group holds
	if err := cmd.Start(); err != nil {
		return err
	}
	group := -cmd.Process.Pid
	ended := make(chan struct{})
	stopped := make(chan struct{})
	var killed error // written before stopped is closed
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			killed = kill(group)
		case <-ended:
		}
	}()
	for {
		// WNOWAIT: the process stays a zombie, so its group's number stays its own.
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	close(ended)
	<-stopped
	killed = errors.Join(killed, kill(group))
	err := cmd.Wait()
	if errors.Is(err, errTooMuch) || errors.Is(err, syscall.EPIPE) {
		err = nil // it did not read all, or wrote too much, which its answer tells
	}
	return errors.Join(err, killed)
}

// kill ends a process group; that there is none any more is no fault.
func kill(group int) error {
	if err := syscall.Kill(group, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("its processes could not be ended: %w", err)
	}
	return nil
}

var errTooMuch = errors.New("too much output")

// bounded keeps what is written to it, up to a limit.
type bounded struct {
	kept bytes.Buffer // not embedded: its ReadFrom would pass the limit by
	left int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		b.over = true
		return 0, errTooMuch
	}
	b.left -= len(p)
	return b.kept.Write(p)
}

// lines logs what is written to it by line.
type lines struct {
	log     *slog.Logger
	partial []byte
	cut     bool // the rest of this line is dropped
	count   int
	last    string // the last line that was not blank
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if room := maxLine - len(l.partial); len(part) > room {
			part, l.cut = part[:room], true
		}
		l.partial = append(l.partial, part...)
		if i < 0 {
			return n, nil
		}
		l.end()
		p = p[i+1:]
	}
	return n, nil
}

// end logs the line that was begun.
func (l *lines) end() {
	text := strings.ToValidUTF8(strings.TrimSpace(string(l.partial)), "�")
	if l.cut {
		text += " …"
	}
	l.partial, l.cut = l.partial[:0], false
	if text == "" {
		return
	}
	l.last = text
	if l.count++; l.count < maxLines {
		l.log.Info("repo agent: " + text)
	} else if l.count == maxLines {
		l.log.Warn(fmt.Sprintf("repo agent: more than %d lines; the rest is left out", maxLines-1))
	}
}
