package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
	"golang.org/x/sys/unix"
)

func kill(t testing.TB, w *Workers, sig unix.Signal) {
	t.Helper()
	if err := unix.Kill(int(w.States()[0].PID), sig); err != nil {
		t.Fatal(err)
	}
}

// state is that of a process in ps: 'T' is stopped, 'Z' dead; 0 is no process.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, ok := strings.Cut(string(stat), ") "); err == nil && ok {
		return rest[0]
	}
	return 0
}

func alive(pid int) bool {
	s := state(pid)
	return s != 0 && s != 'Z'
}

// A worker is killed again and again under load: every batch is answered or failed
// once, and the instances are back each time.
func TestKillUnderLoad(t *testing.T) {
	t.Run("lane", func(t *testing.T) { testKillUnderLoad(t, Config{}) })
	t.Run("lane, read by a loop", func(t *testing.T) { testKillUnderLoad(t, Config{Ears: looptest.Start(t)}) })
	t.Run("stream", func(t *testing.T) { testKillUnderLoad(t, Config{UseStream: true}) })
}

func testKillUnderLoad(t *testing.T, c Config) {
	c.Local, c.Backoff = []LocalWorker{as("worker")}, 10*time.Millisecond
	w := start(t, c)
	const instances, kills = 2, 3
	var up [instances]atomic.Bool
	var downs atomic.Int32
	s := spec(instances, nil)
	s.Changed = func(i int, isUp bool) {
		if up[i].Swap(isUp) == isUp {
			t.Errorf("instance %d changed to %v, which it was", i, isUp)
		}
		if !isUp {
			downs.Add(1)
		}
	}
	for i := range up {
		up[i].Store(true)
	}
	v := load(t, w, s)
	stop := make(chan struct{})
	var good, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range instances {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				b, results := newBatch(2, 64)
				v.Executor(i).Execute(b)
				r := wait(t, results)
				switch {
				case r.Err == nil:
					checkEcho(t, b, r)
					good.Add(1)
				case !errors.Is(r.Err, infer.ErrWorkerLost) || infer.CodeOf(r.Err) != infer.Unavailable ||
					infer.ReasonOf(r.Err) != infer.ReasonWorkerLost:
					t.Errorf("a batch failed with %v", r.Err)
				default:
					lost.Add(1)
					eventually(t, "the instance is back", up[i].Load)
				}
				if len(results) > 0 {
					t.Error("a batch was answered twice")
				}
			}
		})
	}
	for n := 1; n <= kills; n++ {
		before := good.Load()
		eventually(t, "answers", func() bool { return good.Load() > before+20 })
		at := time.Now()
		kill(t, w, unix.SIGKILL)
		eventually(t, "both are down", func() bool { return downs.Load() >= int32(n*instances) })
		eventually(t, "both are up", func() bool { return up[0].Load() && up[1].Load() })
		t.Logf("back %v after the kill", time.Since(at))
	}
	close(stop)
	wg.Wait()
	if lost.Load() == 0 {
		t.Log("no batch was in flight at any kill")
	}
	if n := w.States()[0].Restarts; n != kills {
		t.Errorf("%d restarts, want %d", n, kills)
	}
	unload(t, v)
}

// A result that is still being read outlives its worker.
func TestResultOutlivesWorker(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(1, 1000)
	v.Executor(0).Execute(b)
	r := wait(t, results)
	kill(t, w, unix.SIGKILL)
	eventually(t, "the worker is back", func() bool { return w.States()[0].Restarts == 1 && w.Ready() })
	checkEcho(t, b, r)
}

func TestHungWorkerIsReplaced(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}, WatchInterval: 50 * time.Millisecond, HealthTimeout: time.Second})
	changed := make(chan bool, 4)
	s := spec(1, nil)
	s.Changed = func(_ int, up bool) { changed <- up }
	v := load(t, w, s)
	defer unload(t, v)
	pid := int(w.States()[0].PID)
	kill(t, w, unix.SIGSTOP)
	eventually(t, "it is stopped", func() bool { return state(pid) == 'T' })
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	if r := wait(t, results); !errors.Is(r.Err, infer.ErrWorkerLost) {
		t.Errorf("got %v", r.Err)
	}
	if down, up := <-changed, <-changed; down || !up {
		t.Errorf("changed to %v, then %v", down, up)
	}
	b, results = newBatch(1, 4)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

// Unloading while the worker is down, or dies, ends.
func TestUnloadWhileDown(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, spec(2, nil))
	kill(t, w, unix.SIGKILL)
	unload(t, v)
	v = load(t, w, spec(2, map[string]string{"execute_delay_ms": "60000"}))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		unload(t, v) // waits for the batch
	}()
	kill(t, w, unix.SIGKILL)
	if r := wait(t, results); r.Err == nil {
		t.Error("the batch was answered")
	}
	<-done
	v = load(t, w, spec(2, nil))
	unload(t, v)
}

func TestStartFails(t *testing.T) {
	for name, l := range map[string]LocalWorker{
		"no such binary": {Path: "/nowhere/sluice-worker"},
		"ends at once":   {Path: "/bin/false"},
		"says nothing":   {Env: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "says nothing" {
				l.Path = sleeper(t)
			}
			w, err := Start(t.Context(), Config{Local: []LocalWorker{l}, StartTimeout: 300 * time.Millisecond}, Deps{Log: logger(t)})
			if err == nil {
				t.Error("it started")
				_ = w.Close(t.Context())
			}
		})
	}
	if _, err := Start(t.Context(), Config{}, Deps{Log: logger(t)}); err == nil {
		t.Error("no workers started")
	}
}

// sleeper is a program that takes the arguments and does nothing with them.
func sleeper(t *testing.T) string {
	path := t.TempDir() + "/sleeper"
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Close leaves no process and no name behind, also with a version that is loaded.
func TestCloseEndsProcesses(t *testing.T) {
	before := sharedMemoryNames(t)
	w, err := Start(t.Context(), Config{Local: []LocalWorker{as("worker")}}, Deps{Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	v := load(t, w, spec(1, nil))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
	pid := int(w.States()[0].PID)
	if err := w.Close(t.Context()); err != nil { // the version is still loaded
		t.Error(err)
	}
	if alive(pid) {
		t.Error("the worker is still there")
	}
	if after := sharedMemoryNames(t); after != before {
		t.Errorf("/dev/shm has %q, had %q", after, before)
	}
}

// sharedMemoryNames are ours; other programs of the machine come and go.
func sharedMemoryNames(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Skip("there is no /dev/shm")
	}
	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), "sluice") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// runGateway is a gateway with a worker under load, until it is killed.
func runGateway() error {
	cfg := Config{Local: []LocalWorker{as("worker")}, RequestArena: 16 << 20}
	w, err := Start(context.Background(), cfg, Deps{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	v, err := w.Load(context.Background(), spec(1, nil))
	if err != nil {
		return err
	}
	fmt.Println(w.States()[0].PID)
	for {
		b, results := newBatch(1, 64)
		v.Executor(0).Execute(b)
		r := <-results
		if r.Err != nil {
			return r.Err
		}
		r.Memory.Release()
	}
}

func TestGatewayDeathEndsWorkers(t *testing.T) {
	before := sharedMemoryNames(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=gateway")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, numErr := strconv.Atoi(strings.TrimSpace(line))
	if err := errors.Join(err, numErr); err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("the worker is not there")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "the worker is gone", func() bool { return !alive(pid) })
	if after := sharedMemoryNames(t); after != before {
		t.Errorf("/dev/shm has %q, had %q", after, before)
	}
}

// A remote worker may come late, go, and come again.
func TestRemoteComesAndGoes(t *testing.T) {
	insecure := workers.Config{Insecure: true}
	address, stop := runRemote(t, insecure, "127.0.0.1:0")
	stop()
	w := start(t, Config{Remote: []RemoteWorker{{Address: address}}, Backoff: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond, StartTimeout: time.Second})
	if w.Ready() {
		t.Error("it is ready without its worker")
	}
	if _, err := w.Load(t.Context(), spec(1, nil)); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("load without a worker: %v", err)
	}
	_, stop = runRemote(t, insecure, address)
	eventually(t, "the worker is there", w.Ready)
	changed := make(chan bool, 2)
	s := spec(1, nil)
	s.Changed = func(_ int, up bool) { changed <- up }
	v := load(t, w, s)
	stop()
	if <-changed {
		t.Error("the instance is up without its worker")
	}
	_, stop = runRemote(t, insecure, address)
	defer stop()
	if !<-changed {
		t.Error("the instance is down beside its worker")
	}
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
	unload(t, v)
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestNoDescriptorStays(t *testing.T) {
	before := descriptors(t)
	w, err := Start(t.Context(), Config{Local: []LocalWorker{as("worker")}}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ {
		kill(t, w, unix.SIGKILL)
		eventually(t, "the worker is back", func() bool { return w.States()[0].Restarts == n && w.Ready() })
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The runtime's own, of its poller and for waiting, may have come.
	if after := descriptors(t); after > before+4 {
		t.Errorf("%d descriptors are open, there were %d", after, before)
	}
}

func TestLineLog(t *testing.T) {
	var out strings.Builder
	l := &lineLog{log: slog.New(slog.NewTextHandler(&out, nil)), stream: "stderr"}
	for _, piece := range []string{"a li", "ne\n\n{\"time\":\"x\",\"level\":\"ERROR\",\"msg\":\"y\",\"n\":3}\n", strings.Repeat("z", maxLine+1)} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Errorf("Write is %d, %v", n, err)
		}
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], `line="a line"`) || !strings.Contains(lines[1], "level=ERROR msg=y n=3") {
		t.Errorf("got %q", lines)
	}
}
