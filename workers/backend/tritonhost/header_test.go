//go:build cgo

package tritonhost

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Our prototypes and numbers against Triton's own headers, as C++ compiles them: another signature of a function
// of the same name is an error, and so is another number.
func TestHeader(t *testing.T) {
	headers, err := filepath.Abs("../../../.cache/triton-headers")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(headers, "triton/core/tritonbackend.h")); err != nil {
		t.Skip("Triton's headers are not there (make triton-headers)")
	}
	for name, file := range map[string]string{"ours": "testdata/ours.cc", "triton": "testdata/triton.cc"} {
		cmd := exec.Command("c++", "-fsyntax-only", "-Ilibrary", "-I"+headers, file)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
