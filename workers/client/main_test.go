package client

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest/compose"
	"github.com/sluice-serve/sluice/workers/backend/identity"
	"github.com/sluice-serve/sluice/workers/backend/repeat"
	"github.com/sluice-serve/sluice/workers/backend/square"
)

// The test binary is also the worker process, the gateway that is killed, and a worker
// that lies.
const roleEnv = "SLUICE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "worker":
		fatal(runWorker(workers.Device{}))
	case "gpu":
		fatal(runWorker(workers.Device{GPU: true}))
	case "gateway":
		fatal(runGateway())
	case "liar":
		fatal(runLiar())
	case "program":
		fatal(runProgram(""))
	case "program ends":
		fatal(runProgram("ends"))
	case "program silent":
		fatal(runProgram("silent"))
	default:
		leak.Main(m)
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runWorker(device workers.Device) error {
	conn, shared, err := workers.Inherit()
	if err != nil {
		return err
	}
	deps := workers.Deps{Conn: conn, Shared: shared, Exit: os.Exit, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Backends: backends()}
	w, err := workers.New(workers.Config{Version: "test", Device: device, CUDALibrary: os.Getenv("SLUICE_TEST_CUDA")}, deps)
	if err != nil {
		return err
	}
	return w.Run(context.Background(), nil)
}

func backends() map[string]backend.Factory {
	return map[string]backend.Factory{"identity": identity.New, "repeat": repeat.New, "square": square.New, "compose": compose.New}
}

func logger(t testing.TB) *slog.Logger {
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// as is a local worker that this test binary plays.
func as(role string) LocalWorker {
	return LocalWorker{Path: os.Args[0], Env: append(os.Environ(), roleEnv+"="+role)}
}

func start(t testing.TB, cfg Config) *Workers {
	t.Helper()
	return startWith(t, cfg, Deps{Log: logger(t)})
}

func startWith(t testing.TB, cfg Config, deps Deps) *Workers {
	t.Helper()
	if cfg.RequestArena == 0 {
		cfg.RequestArena = 64 << 20
	}
	w, err := Start(t.Context(), cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return w
}

// startRemote runs a worker of TCP in this process, until the test ends.
func startRemote(t testing.TB, cfg workers.Config) string {
	t.Helper()
	address, stop := runRemote(t, cfg, "127.0.0.1:0")
	t.Cleanup(stop)
	return address
}

func runRemote(t testing.TB, cfg workers.Config, listen string) (string, func()) {
	t.Helper()
	cfg.Listen, cfg.ExitTimeout = listen, 2*time.Second
	w, err := workers.New(cfg, workers.Deps{Log: logger(t), Backends: backends()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, address := make(chan error, 1), make(chan string, 1)
	go func() { done <- w.Run(ctx, func(a net.Addr) { address <- a.String() }) }()
	select {
	case a := <-address:
		return a, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	case err := <-done:
		cancel()
		t.Fatal(err)
		return "", nil
	}
}

func config(params map[string]string) *modelconfig.ModelConfig {
	c := &modelconfig.ModelConfig{Name: "m", Backend: "identity", Parameters: map[string]*modelconfig.ModelParameter{}}
	for _, n := range []string{"0", "1"} {
		c.Input = append(c.Input, &modelconfig.ModelInput{Name: "INPUT" + n, DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}})
		c.Output = append(c.Output, &modelconfig.ModelOutput{Name: "OUTPUT" + n, DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}})
	}
	for k, v := range params {
		c.Parameters[k] = &modelconfig.ModelParameter{StringValue: v}
	}
	return c
}

func spec(instances int, params map[string]string) Spec {
	s := Spec{Name: "m", Version: 1, ModelDir: "/nowhere/m", ModelFile: "/nowhere/m/1/model", Config: config(params), Backend: "identity"}
	for i := range instances {
		s.Instances = append(s.Instances, Instance{Name: fmt.Sprintf("m_1_0_%d", i)})
	}
	return s
}

func load(t testing.TB, w *Workers, s Spec) *Version {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	v, err := w.Load(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func unload(t testing.TB, v *Version) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := v.Unload(ctx); err != nil {
		t.Error(err)
	}
}

var lastBatch atomic.Uint64

// newBatch is a batch of one request for each row; its results go to the channel.
func newBatch(rows, columns int) (*infer.Batch, chan *infer.Result) {
	b := &infer.Batch{ID: lastBatch.Add(1), Rows: rows}
	data := make([]byte, rows*columns*4)
	for i := range data {
		data[i] = byte(i*7) + byte(b.ID)
	}
	for i := range rows {
		q := &infer.Request{ID: fmt.Sprint(b.ID), Rows: 1}
		for _, name := range []string{"INPUT0", "INPUT1"} {
			q.Inputs = append(q.Inputs, infer.Tensor{Name: name, Datatype: infer.FP32, Shape: []int64{1, int64(columns)},
				Data: data[i*columns*4 : (i+1)*columns*4]})
		}
		b.Requests = append(b.Requests, q)
	}
	for _, name := range []string{"INPUT0", "INPUT1"} {
		b.Inputs = append(b.Inputs, infer.BatchInput{Name: name, Datatype: infer.FP32, Shape: []int64{int64(rows), int64(columns)},
			Segments: [][]byte{data}})
	}
	results := make(chan *infer.Result, 16)
	b.Deliver = func(r *infer.Result) { results <- r }
	return b, results
}

func wait(t testing.TB, results chan *infer.Result) *infer.Result {
	t.Helper()
	select {
	case r := <-results:
		return r
	case <-time.After(60 * time.Second):
		t.Fatal("no result after 60 s")
		return nil
	}
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after 60 s: %s", what)
		}
	}
}
