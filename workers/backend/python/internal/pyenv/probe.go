package pyenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// oldest is the first version of Python 3 that the runner works with.
const oldest = 9

const (
	probeTime = 30 * time.Second
	// mostProbed bounds what is remembered of interpreters.
	mostProbed = 256
)

// ask has an interpreter say what it is; numpy is looked for and not imported.
const ask = `import importlib.util, json, sys
print(json.dumps({"major": sys.version_info[0], "minor": sys.version_info[1],
	"numpy": importlib.util.find_spec("numpy") is not None}))`

// said is what an interpreter says.
type said struct {
	Major, Minor int
	Numpy        bool
}

var probes = struct {
	sync.Mutex
	known map[string]said // guarded by mu: interpreters that suit
}{known: map[string]said{}}

// probe refuses interpreters with which no model runs.
func probe(ctx context.Context, e *Environment, variables []string) error {
	key := identity(e.Interpreter) + "\x00" + strings.Join(e.Variables, "\x00")
	probes.Lock()
	_, ok := probes.known[key]
	probes.Unlock()
	if ok {
		return nil
	}
	out, err := Run(ctx, probeTime, With(variables, e.Variables), e.Interpreter, "-c", ask)
	var s said
	if err == nil {
		err = json.Unmarshal(bytes.TrimSpace(out), &s)
	}
	switch {
	case err != nil:
		return infer.Errorf(infer.InvalidArg, "the Python interpreter '%s' does not work: %w", e.Interpreter, err)
	case s.Major != 3 || s.Minor < oldest:
		return infer.Errorf(infer.InvalidArg, "the Python interpreter '%s' is version %d.%d, models need 3.%d or newer",
			e.Interpreter, s.Major, s.Minor, oldest)
	case !s.Numpy:
		return infer.Errorf(infer.InvalidArg, "the Python interpreter '%s' has no numpy, which models need: "+
			"install it, or name another by the parameter PYTHON or EXECUTION_ENV_PATH", e.Interpreter)
	}
	probes.Lock()
	defer probes.Unlock()
	if len(probes.known) >= mostProbed {
		clear(probes.known)
	}
	probes.known[key] = s
	return nil
}

// mostOutput bounds what is kept of a program's output, in bytes.
const mostOutput = 1 << 20

// Run runs a program to its end, with exactly these variables, in a process group that is killed
// with it. An error has the end of what it wrote.
func Run(ctx context.Context, limit time.Duration, variables []string, program string, args ...string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append([]string{}, variables...) // nil would be the worker's own
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, errs ending
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.bytes, nil
	}
	if ctx.Err() != nil {
		err = errors.New("it took longer than " + limit.String())
	}
	const shown = 2000
	if text := strings.TrimSpace(string(errs.bytes)); text != "" {
		return nil, errors.New(err.Error() + ": " + text[max(0, len(text)-shown):])
	}
	return nil, err
}

// ending keeps the end of what is written to it.
type ending struct{ bytes []byte }

// Write fits io.Writer.
func (e *ending) Write(b []byte) (int, error) {
	e.bytes = append(e.bytes, b...)
	if over := len(e.bytes) - mostOutput; over > 0 {
		e.bytes = append(e.bytes[:0], e.bytes[over:]...)
	}
	return len(b), nil
}

// With is variables with those of changes in their place.
func With(variables, changes []string) []string {
	all := make([]string, 0, len(variables)+len(changes))
	for _, v := range variables {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(changes, func(c string) bool { return strings.HasPrefix(c, name+"=") }) {
			all = append(all, v)
		}
	}
	return append(all, changes...)
}
