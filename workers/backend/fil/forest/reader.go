//go:build cgo

package forest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command is the first argument of this program where it is to read a file.
const command = "read-forest"

// Bounds on the process that reads a file.
const (
	readTime   = 20 * time.Second // of CPU, and a second for each MiB of the file
	readMemory = 4 << 30          // bytes of address space, and readFactor for each byte of the file
	readFactor = 64
	mostText   = 4096 // bytes of its output that are kept
)

// Source is a file and how it is read.
type Source struct {
	Library string // path of treelite's shared library
	Format  Format
	Path    string
	Unknown bool // fields of XGBoost's JSON and UBJSON that treelite does not know are skipped

	most time.Duration // of CPU, in place of readTime; of tests
}

// read has a process write the forest to a file.
func (s Source) read(ctx context.Context, to *os.File) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program's own path: %w", err)
	}
	info, err := os.Stat(s.Path)
	if err != nil {
		return err
	}
	config := "{}"
	if s.Unknown {
		config = `{"allow_unknown_field": true}`
	}
	most := cmp.Or(s.most, readTime)
	cmd := exec.CommandContext(ctx, self, command, s.Library, strconv.Itoa(int(s.Format)), s.Path, config,
		strconv.FormatInt(int64(most/time.Second)+info.Size()>>20, 10), strconv.FormatInt(readMemory+readFactor*info.Size(), 10))
	cmd.ExtraFiles = []*os.File{to}
	said, complained := &tail{}, &tail{}
	cmd.Stdout, cmd.Stderr = said, complained
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal comes when the thread ends
	err = cmd.Run()
	runtime.UnlockOSThread()
	var ended *exec.ExitError
	switch {
	case err == nil && s.Format == LightGBM:
		return ends(s.Path)
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.As(err, &ended):
		return fmt.Errorf("starting what reads it: %w", err)
	case said.Len() > 0:
		return errors.New(plain(said.String()))
	}
	if w, ok := ended.Sys().(syscall.WaitStatus); ok && w.Signal() == syscall.SIGKILL {
		return errors.New("it is damaged, or needs more CPU time or memory than a file of its size may: what read it was killed")
	}
	return fmt.Errorf("it is damaged: treelite died of it (%v: %s)", err, firstLine(complained.String()))
}

// place is what treelite puts before a text: a time, a source file and a line of it.
var place = regexp.MustCompile(`(?m)^\[[0-9:]+\] \S+:[0-9]+: `)

// plain is a text of treelite's for somebody who does not know its sources.
func plain(s string) string {
	if s = strings.TrimSpace(place.ReplaceAllString(s, "")); s == "std::bad_alloc" {
		return "it asks for more memory than a file of its size may"
	}
	lines := slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.Trim(l, "~ ") == "" })
	return strings.Join(lines, "; ")
}

// The line behind the last tree of a model of LightGBM, and a line that is before the first of those that have it.
const (
	lastLine  = "\nend of trees"
	sizesLine = "\ntree_sizes="
)

// ends refuses a model of LightGBM that ends among its trees. treelite takes what there is.
func ends(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	const keep = len(lastLine)
	b := make([]byte, 0, 1<<20)
	sizes := false
	for {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		sizes = sizes || bytes.Contains(b, []byte(sizesLine))
		if bytes.Contains(b, []byte(lastLine)) {
			return nil
		}
		switch {
		case err == io.EOF && sizes:
			return errors.New("it ends too early: the line \"end of trees\" is missing")
		case err == io.EOF: // a version of LightGBM that wrote neither
			return nil
		case err != nil:
			return err
		}
		if len(b) > keep {
			b = b[:copy(b, b[len(b)-keep:])]
		}
	}
}

// tail keeps the first bytes of what is written to it.
type tail struct{ bytes.Buffer }

// Write fits io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.Buffer.Write(b[:min(len(b), mostText-t.Len())])
	return len(b), nil
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return first
}

// Child is what this program does instead of its own work where it was started to read a file: true says that main
// has to exit with that status. A program, or test, that loads forests asks first of all.
func Child() (status int, is bool) {
	if len(os.Args) != 8 || os.Args[1] != command {
		return 0, false
	}
	if err := child(os.Args[2:]); err != nil {
		_, _ = io.WriteString(os.Stdout, err.Error()) // who started it is gone, if it fails
		return 1, true
	}
	return 0, true
}

func child(args []string) error {
	format, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for _, bound := range []struct {
		of   int
		most string
	}{{unix.RLIMIT_CPU, args[4]}, {unix.RLIMIT_AS, args[5]}, {unix.RLIMIT_CORE, "0"}} {
		most, err := strconv.ParseUint(bound.most, 10, 64)
		if err != nil {
			return err
		}
		if err := unix.Setrlimit(bound.of, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("bounding the process: %w", err)
		}
	}
	return write(args[0], Format(format), args[2], args[3], 3)
}
