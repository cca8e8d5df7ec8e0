package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// runProgram is a worker program of a backend, as somebody may write it: protocol 2 at the
// socket that it is told, until its standard input ends. broken ones end, or never listen.
func runProgram(broken string) error {
	path, ok := strings.CutPrefix(os.Args[1], "--listen=unix:")
	switch {
	case !ok:
		return errors.New("no socket is named")
	case broken == "ends":
		return errors.New("a library is missing")
	case broken == "silent":
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	workerpb.RegisterWorkerServer(server, program{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the gateway has gone
		server.Stop()
	}()
	return server.Serve(l)
}

type program struct {
	workerpb.UnimplementedWorkerServer
}

func (program) Hello(context.Context, *workerpb.HelloRequest) (*workerpb.HelloResponse, error) {
	return &workerpb.HelloResponse{Protocol: protocol, Pid: int64(os.Getpid()), Devices: []*workerpb.Device{{}},
		Backends: []*workerpb.Backend{{Name: "own", Patches: true, Formats: []*workerpb.ModelFormat{{Filename: "net.own"}}}}}, nil
}

// Describe tells what it was asked.
func (program) Describe(_ context.Context, r *workerpb.DescribeRequest) (*workerpb.DescribeResponse, error) {
	return &workerpb.DescribeResponse{Inputs: []*workerpb.TensorInfo{{Name: r.GetBackend() + " " + r.GetOptions().GetRuntime() + " " + r.GetOptions().GetFile()}}}, nil
}

func (program) Execute(s grpc.BidiStreamingServer[workerpb.ExecuteRequest, workerpb.ExecuteResponse]) error {
	<-s.Context().Done()
	return nil
}

func (program) Watch(_ *workerpb.WatchRequest, s grpc.ServerStreamingServer[workerpb.WatchResponse]) error {
	for {
		if err := s.Send(&workerpb.WatchResponse{}); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func programAs(role string) LocalWorker {
	w := as(role)
	w.Name, w.Program = "backend own", true
	return w
}

func gone(pid int64) bool { return errors.Is(syscall.Kill(int(pid), 0), syscall.ESRCH) }

// A program is started, says what it is, is started again when it dies, and ends with the
// gateway; nothing of its socket is left.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	w, err := Start(t.Context(), Config{Local: []LocalWorker{as("worker"), programAs("program")}, RequestArena: 4 << 20}, Deps{Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	state := func() State { return w.States()[1] }
	pid := state().PID
	if s := state(); s.Worker != "backend own" || !s.Up || !s.Local || pid == 0 {
		t.Errorf("state %+v", s)
	}
	if all := w.Backends(); len(all) == 0 {
		t.Error("no backends")
	} else if b := all[len(all)-1]; b.Worker != "backend own" || b.GetName() != "own" || !b.GetPatches() || b.GetFormats()[0].GetFilename() != "net.own" {
		t.Errorf("backend %v", b)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
	cfg := config(nil)
	cfg.Backend = "x"
	d, err := w.Describe(t.Context(), &Spec{Backend: "own", BackendFile: "/b/x/libx.so", ModelFile: "/m/1/f", Config: cfg})
	if err != nil || d.GetInputs()[0].GetName() != "own own /b/x/libx.so" {
		t.Errorf("the program was asked for %v, %v", d, err)
	}
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program is there again", func() bool { s := state(); return s.Up && s.PID != pid })
	pid = state().PID
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	if !gone(pid) {
		t.Error("the program is still there")
	}
}

// A program that does not serve hinders nothing else.
func TestBrokenProgram(t *testing.T) {
	for _, role := range []string{"program ends", "program silent"} {
		t.Run(role, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			cfg := Config{Local: []LocalWorker{as("worker"), programAs(role)}, StartTimeout: 3 * time.Second, Backoff: time.Minute, BackoffMax: time.Minute}
			w := start(t, cfg)
			if s := w.States(); !s[0].Up || s[1].Up {
				t.Errorf("states %+v", s)
			}
			if _, err := w.choose("own", Instance{Name: "m"}, nil); infer.CodeOf(err) != infer.InvalidArg {
				t.Errorf("a backend that is not there was chosen: %v", err)
			}
			if !w.Ready() {
				t.Error("what never served is waited for")
			}
			for _, b := range w.Backends() {
				if b.Worker == "backend own" {
					t.Errorf("backend %v", b)
				}
			}
		})
	}
}

// A temporary folder whose path is too long for a socket is named.
func TestProgramOfLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	s := newSession(logger(t))
	err := s.openProgram(t.Context(), &Config{StartTimeout: time.Second}, programAs("program"))
	if err == nil || !strings.Contains(err.Error(), "too long for a Unix socket") || s.process != nil {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
