package client

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// named is spec of a model with that name, whose config may say in which process it is.
func named(name, process string) Spec {
	s := spec(1, nil)
	s.Name, s.ModelDir, s.ModelFile = name, "/nowhere/"+name, "/nowhere/"+name+"/1/model"
	s.Config.Name = name
	if process != "" {
		s.Config.Parameters[ProcessParameter] = &modelconfig.ModelParameter{StringValue: process}
	}
	return s
}

// pids are those of the workers that there are, by name.
func pids(w *Workers) map[string]int {
	all := map[string]int{}
	for _, s := range w.States() {
		all[s.Worker] = int(s.PID)
	}
	return all
}

func names(w *Workers) string { return strings.Join(slices.Sorted(maps.Keys(pids(w))), " ") }

func serves(t *testing.T, v *Version) {
	t.Helper()
	b, results := newBatch(2, 64)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

// Where a model is, its backend's rule says, and before that its own parameter.
func TestProcessesOfModels(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": ModelProcess, "identity": BackendProcess}})
	var loaded []*Version
	for _, c := range []struct{ model, process, want string }{
		{"a", "shared", "cpu"},
		{"b", "", "cpu cpu/identity"},
		{"c", "backend", "cpu cpu/identity"},
		{"d", "model", "cpu cpu/identity cpu/identity/d"},
		{"d", "model", "cpu cpu/identity cpu/identity/d"}, // another version
		{"e", "model", "cpu cpu/identity cpu/identity/d cpu/identity/e"},
	} {
		loaded = append(loaded, load(t, w, named(c.model, c.process)))
		if got := names(w); got != c.want {
			t.Errorf("after %s, %q: %s, want %s", c.model, c.process, got, c.want)
		}
	}
	for _, v := range loaded {
		serves(t, v)
	}
	before := pids(w)
	if distinct := len(slices.Compact(slices.Sorted(maps.Values(before)))); distinct != 4 {
		t.Errorf("%v: not all are processes of their own", before)
	}
	for i, want := range []string{"cpu cpu/identity cpu/identity/d cpu/identity/e", "cpu cpu/identity cpu/identity/d cpu/identity/e",
		"cpu cpu/identity/d cpu/identity/e", "cpu cpu/identity/d cpu/identity/e", "cpu cpu/identity/e", "cpu"} {
		unload(t, loaded[i])
		if got := names(w); got != want {
			t.Errorf("after unload %d: %s, want %s", i, got, want)
		}
	}
	for name, pid := range before {
		if alive(pid) != (name == "cpu") {
			t.Errorf("process %d of %s lives: %v", pid, name, alive(pid))
		}
	}
	if _, err := w.Load(t.Context(), named("x", "mine")); infer.CodeOf(err) != infer.InvalidArg ||
		!strings.Contains(err.Error(), "parameter 'worker_process' is 'mine' for x") {
		t.Errorf("got %v", err)
	}
}

// kill -9 of one process takes its models out of service and no others, and it is started again.
func TestKillOneProcess(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": ModelProcess}})
	var downs [2]atomic.Int32
	var up [2]atomic.Bool
	var versions [2]*Version
	for i, name := range []string{"a", "b"} {
		s := named(name, "")
		s.Changed = func(_ int, is bool) {
			up[i].Store(is)
			if !is {
				downs[i].Add(1)
			}
		}
		versions[i] = load(t, w, s)
		defer unload(t, versions[i])
	}
	before := pids(w)
	if err := unix.Kill(before["cpu/identity/a"], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		serves(t, versions[1])
	}
	eventually(t, "a is back", up[0].Load)
	serves(t, versions[0])
	after := pids(w)
	if downs[0].Load() != 1 || downs[1].Load() != 0 || after["cpu/identity/a"] == before["cpu/identity/a"] ||
		after["cpu/identity/b"] != before["cpu/identity/b"] || after["cpu"] != before["cpu"] {
		t.Errorf("a went down %d times, b %d; before %v, after %v", downs[0].Load(), downs[1].Load(), before, after)
	}
}

// A load that fails, or is given up, leaves no process; nor does one that can't be started. Their number is bounded.
func TestProcessesAreBounded(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": ModelProcess}, MaxProcesses: 2})
	wrong := named("w", "")
	wrong.Config.Output = nil
	if _, err := w.Load(t.Context(), wrong); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Load(gone, named("g", "")); infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("got %v", err)
	}
	if got := names(w); got != "cpu" {
		t.Errorf("there are %s", got)
	}
	a, b := load(t, w, named("a", "")), load(t, w, named("b", ""))
	if _, err := w.Load(t.Context(), named("c", "")); infer.CodeOf(err) != infer.ResourceExhausted ||
		!strings.Contains(err.Error(), "there are 2 beside the shared ones") {
		t.Errorf("got %v", err)
	}
	unload(t, a)
	c := load(t, w, named("c", ""))
	serves(t, c)
	unload(t, c)
	unload(t, b)
	w.workers[0].local.Path = "/nowhere"
	if _, err := w.Load(t.Context(), named("d", "")); err == nil || !strings.Contains(err.Error(), "worker cpu/identity/d: start worker") {
		t.Errorf("got %v", err)
	}
	if got := names(w); got != "cpu" {
		t.Errorf("there are %s", got)
	}
}

// Models that share a process come and go at the same time, and it is there as long as one of them is.
func TestProcessComesAndGoes(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": BackendProcess}})
	var all sync.WaitGroup
	end := time.Now().Add(time.Second)
	for i := range 4 {
		all.Go(func() {
			for time.Now().Before(end) {
				v := load(t, w, named(string(rune('a'+i)), ""))
				serves(t, v)
				unload(t, v)
			}
		})
	}
	all.Wait()
	if got := names(w); got != "cpu" {
		t.Errorf("there are %s", got)
	}
}
