package workers_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

// built is the folder of realWorker, once it is there.
var built atomic.Value

// realWorker is the real worker, built once for all tests of the package, of what `make
// build` has compiled.
var realWorker = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-worker")
	if err != nil {
		return "", err
	}
	built.Store(dir)
	path := filepath.Join(dir, "sluice-worker")
	out, err := exec.Command("go", "build", "-trimpath", "-tags", buildTags, "-o", path, "github.com/sluice-serve/sluice/cmd/sluice-worker").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// startProcess starts the real worker as a gateway does.
func startProcess(t testing.TB) (*gateway, *exec.Cmd) {
	path := must(realWorker())(t)
	g := &gateway{
		requests:  must(shm.NewArena("requests", 16<<20))(t),
		responses: must(shm.NewPeerArena("responses", 4<<20))(t),
		lane:      must(shm.NewLane(shm.LaneConfig{}))(t),
		done:      make(chan error, 1),
	}
	ours, theirs := sockets(t)
	socket := must(theirs.(*net.UnixConn).File())(t)
	theirs.Close()
	cmd := exec.Command(path, "--inherited", "--device", "cpu")
	cmd.ExtraFiles = []*os.File{socket}
	pass, theirPass, err := shm.NewPass()
	if err != nil {
		t.Fatal(err)
	}
	g.pass = pass
	for _, fd := range []int{g.requests.FD(), g.responses.FD(), g.lane.FD(), g.lane.Bell(), theirPass} {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup(t, fd)), "memory"))
	}
	if testing.Verbose() {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	shm.CloseDescriptors(theirPass)
	go func() { g.done <- cmd.Wait() }()
	g.conns = ours
	g.dial(t, func(context.Context, string) (net.Conn, error) { return ours, nil })
	t.Cleanup(func() {
		g.conn.Close()
		ours.Close()
		if err := <-g.done; err != nil && !cmd.ProcessState.Exited() {
			t.Logf("the worker ended with %v", err)
		}
		g.requests.Close()
		g.responses.Close()
		g.lane.Close()
		shm.CloseDescriptors(pass)
	})
	return g, cmd
}

func TestProcessServesTheLane(t *testing.T) {
	g, cmd := startProcess(t)
	if h := g.hello(t, true); !(h.Lane != 0) || h.Pid != int64(cmd.Process.Pid) {
		t.Fatalf("Hello: %v", h)
	}
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	for id := uint64(1); id <= 50; id++ {
		b, data := rowsBatch(id, 4, 64)
		p := g.layOut(t, b, data)
		g.post(0, p)
		c, res := g.result(t)
		if c.Batch != id || len(res.Outputs) != 1 || !bytes.Equal(g.data(t, res.Outputs[0]), data) {
			t.Fatalf("batch %d: %+v %+v", id, c, res)
		}
		g.lane.Release(c.Token)
	}
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	unload(t, g, 1) // the signals were for the gateway
}

func TestProcessEndsWithItsGatewayWhateverHangs(t *testing.T) {
	g, _ := startProcess(t)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(map[string]string{"execute_delay_ms": "600000"}), 0))
	b, data := rowsBatch(1, 1, 4)
	g.post(0, g.layOut(t, b, data))
	g.conn.Close() // closes the socket
	select {
	case err := <-g.done:
		if err != nil {
			t.Errorf("the worker ended with %v, want 0", err)
		}
		g.done <- nil
	case <-time.After(time.Minute):
		t.Fatal("the worker is still here")
	}
}

func TestProcessCrashesWhenAllowed(t *testing.T) {
	g, _ := startProcess(t)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(map[string]string{"allow_crash": "true"}), 0))
	b, data := rowsBatch(1, 1, 4)
	b.Requests[0].Params = infer.Params{{Name: "crash", Value: infer.Value{Kind: infer.KindBool, Bool: true}}}
	g.post(0, g.layOut(t, b, data))
	select {
	case err := <-g.done:
		if e, ok := err.(*exec.ExitError); !ok || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the worker ended with %v, want SIGKILL", err)
		}
		g.done <- nil
	case <-time.After(time.Minute):
		t.Fatal("the worker is still here")
	}
}

func TestProcessRefusesBadFlags(t *testing.T) {
	path := must(realWorker())(t)
	for _, args := range [][]string{
		{}, {"--inherited", "--listen", "127.0.0.1:0"}, {"--inherited", "--device", "tpu"}, {"--listen", "127.0.0.1:0"},
		{"--listen", "0.0.0.0:0", "--insecure"}, {"--listen", "127.0.0.1:0", "--tls-cert", "x"}, {"--inherited", "more"}, {"--no-such-flag"},
	} {
		c, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		out, err := exec.CommandContext(c, path, args...).CombinedOutput()
		cancel()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 1 || len(out) == 0 {
			t.Errorf("%v: %v, %q; want status 1 and a text", args, err, out)
		}
	}
}
