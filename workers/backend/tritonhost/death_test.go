//go:build cgo

package tritonhost

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// A process that a backend ends is one of its own, made of this test program.
const (
	childMode   = "TRITONHOST_TEST_MODE"
	childFolder = "TRITONHOST_TEST_FOLDER"
)

// child executes one request of a model in the environment's mode, and exits with 0 where it outlives that.
func child() {
	runtime.LockOSThread()
	mode := os.Getenv(childMode)
	b, err := New(built.library)(map[string]string{"stall-seconds": "1"})
	if err != nil {
		os.Exit(3)
	}
	m, err := b.(*host).newModel(backend.Spec{Name: mode, Version: 1, ModelDir: "/m", Config: config(mode, 0), BackendFile: library()}, false)
	if err != nil {
		os.Exit(4)
	}
	in, err := m.NewInstance(nil, backend.InstanceSpec{})
	if err != nil {
		os.Exit(5)
	}
	x := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{tensor("IN", []int64{1}, 5)}})
	x.Run(in)
	os.Exit(0)
}

func TestDeaths(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]string{
		"abort":        "a backend ended the process: backend 'probe' aborted in TRITONBACKEND_ModelInstanceExecute of model 'abort'",
		"throw":        "a backend ended the process: backend 'probe' aborted in TRITONBACKEND_ModelInstanceExecute of model 'throw'",
		"segv":         "backend 'probe' accessed memory that is not there (SIGSEGV) in TRITONBACKEND_ModelInstanceExecute of model 'segv'",
		"hang":         "a backend hangs, its process ends: TRITONBACKEND_ModelInstanceExecute of model 'hang' has taken longer than 1s",
		"overrun":      "backend 'probe' wrote past the end of output 'OUT' (4 bytes) of model 'overrun'; its process ends",
		"abort-load":   "backend 'probe' aborted in TRITONBACKEND_ModelInitialize of model 'abort-load'",
		"crash-stream": "backend 'probe' aborted in TRITONBACKEND_ModelInstanceExecute of model 'crash-stream'",
	} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childMode+"="+mode, childFolder+"="+filepath.Dir(built.library))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want a process that ends with %q, it wrote:\n%s", mode, err, want, out)
		}
	}
}
