//go:build cgo

package tritonhost

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// built is where the library and the probing backend were compiled.
var built struct{ library, backends string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tritonhost")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(childMode) != "" {
		child() // it does not return
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// build compiles what the tests need; a child of a test is given what its parent has.
func build(dir string) error {
	if given := os.Getenv(childFolder); given != "" {
		_ = os.RemoveAll(dir)
		dir = given
	}
	built.library = filepath.Join(dir, "libtritonserver.so")
	built.backends = filepath.Join(dir, "backends")
	if os.Getenv(childFolder) != "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(built.backends, "probe"), 0o755); err != nil {
		return err
	}
	probe := filepath.Join(built.backends, "probe", "libtriton_probe.so")
	object := filepath.Join(dir, "throw.o")
	for _, line := range []string{
		"../../../scripts/tritonserver.sh " + built.library,
		"c++ -fPIC -c -o " + object + " testdata/throw.cc",
		"cc -std=c11 -O1 -Wall -Wextra -Werror -fPIC -shared -pthread -DPROBE_THROWS -Ilibrary -o " + probe +
			" testdata/probe.c " + object + " " + built.library + " -lstdc++",
	} {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", line, err, out)
		}
	}
	return nil
}

// library is the path of the probing backend.
func library() string { return filepath.Join(built.backends, "probe", "libtriton_probe.so") }
