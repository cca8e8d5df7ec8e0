// Package cudatest makes a CUDA driver for tests without a GPU: a shared library on plain
// memory, compiled from testdata/fake.c. A handle of it is the path of a file.
package cudatest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/fake.c
var source []byte

// Driver compiles the library and returns its path. The test is skipped where there is no
// C compiler.
func Driver(t testing.TB) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler for the fake CUDA driver")
	}
	dir := t.TempDir()
	in, library := filepath.Join(dir, "fake.c"), filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(in, source, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, in).CombinedOutput(); err != nil {
		t.Fatalf("the fake CUDA driver does not compile: %v\n%s", err, out)
	}
	return library
}

// Handle is one of memory that a file stands for.
func Handle(path string) (h [64]byte) {
	copy(h[:], path)
	return h
}
