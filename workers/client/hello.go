package client

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// The most that a worker may say of itself.
const (
	maxBackends  = 256
	maxDevices   = 1024
	maxOfBackend = 64  // formats, runtimes, placements and kinds of memory, each
	maxHelloName = 256 // bytes of a name
	maxPath      = 4096
)

// checkHello checks what a worker says of its backends: names that configs and folders are
// compared with, and files that are looked for.
func checkHello(m *workerpb.HelloResponse) error {
	if n := len(m.GetBackends()); n > maxBackends {
		return fmt.Errorf("the worker says that it has %d backends, the most is %d", n, maxBackends)
	}
	if n := len(m.GetDevices()); n > maxDevices {
		return fmt.Errorf("the worker says that it has %d devices, the most is %d", n, maxDevices)
	}
	seen := map[string]bool{}
	for _, b := range m.GetBackends() {
		err := checkBackend(b)
		if err == nil && seen[b.GetName()] {
			err = errors.New("it is named twice")
		}
		if err != nil {
			return fmt.Errorf("what the worker says of backend %q can't be: %w", clip(b.GetName()), err)
		}
		seen[b.GetName()] = true
	}
	return nil
}

func checkBackend(b *workerpb.Backend) error {
	if b.GetName() == "" || len(b.GetName()) > maxHelloName {
		return errors.New("its name is empty or too long")
	}
	for what, n := range map[string]int{"model formats": len(b.GetFormats()), "runtimes": len(b.GetRuntimes()),
		"placements": len(b.GetPlacements()), "kinds of memory": len(b.GetMemory())} {
		if n > maxOfBackend {
			return fmt.Errorf("%d %s, the most is %d", n, what, maxOfBackend)
		}
	}
	for _, f := range b.GetFormats() {
		if f.GetPlatform() == "" && f.GetFilename() == "" {
			return errors.New("a model format has neither a platform nor a file name")
		}
		if len(f.GetPlatform()) > maxHelloName || f.GetFilename() != "" && !isFileName(f.GetFilename()) {
			return fmt.Errorf("the model format with platform %q has the file name %q", clip(f.GetPlatform()),
				clip(f.GetFilename()))
		}
	}
	if e := b.GetEngine(); len(e.GetName()) > maxHelloName || len(e.GetGet()) > maxHelloName || len(e.GetPath()) > maxPath {
		return errors.New("the name, path or command of its engine is too long")
	}
	for _, r := range b.GetRuntimes() {
		if !isFileName(r.GetFile()) {
			return fmt.Errorf("the file name %q of a runtime", clip(r.GetFile()))
		}
	}
	return nil
}

// isFileName says that a text names a file in a folder, and no path.
func isFileName(name string) bool {
	return len(name) <= maxHelloName && filepath.IsLocal(name) && filepath.Base(name) == name &&
		!strings.ContainsAny(name, "\x00\\")
}

// clip bounds what of a worker's text an error repeats.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	for most := most; ; most-- {
		if utf8.RuneStart(s[most]) {
			return s[:most] + "…"
		}
	}
}
