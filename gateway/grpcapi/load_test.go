package grpcapi

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/gateway/memory"
	"github.com/sluice-serve/sluice/infer"
)

// identity answers with views on the request's own memory, as a model without work.
type identity struct{}

func (identity) Open(context.Context, *infer.Envelope) (wait func() error, err error) {
	return nil, nil
}

func (identity) Close(*infer.Envelope, *infer.End) {}

func (identity) Infer(_ context.Context, req *infer.Request, to infer.Sink) {
	req.Memory.Retain()
	outputs := [1]infer.Tensor{req.Inputs[0]}
	outputs[0].Name = "OUT"
	infer.Flush(to.Done(to.Send(&infer.Response{ID: req.ID, Model: req.Model, Version: "1", Final: true, Outputs: outputs[:],
		Memory: req.Memory})))
}

// clientEnv names, in the process that makes the load, the server's address, the
// number of elements of a request and how many seconds it takes.
const clientEnv = "GRPCAPI_LOAD"

// TestLoadClient is no test but the load of BenchmarkServer: eight callers with a
// prebuilt message on two connections. It runs in a process of its own, so that the
// server's processor time is the benchmark's.
func TestLoadClient(t *testing.T) {
	spec := strings.Fields(os.Getenv(clientEnv))
	if len(spec) != 3 {
		t.Skip("runs under BenchmarkServer only")
	}
	n, err := strconv.Atoi(spec[1])
	if err != nil {
		t.Fatal(err)
	}
	length, err := time.ParseDuration(spec[2])
	if err != nil {
		t.Fatal(err)
	}
	message := marshal(t, fp32Request(n))
	var conns [2]*grpc.ClientConn
	for i := range conns {
		if conns[i], err = grpc.NewClient(spec[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(8<<20), grpc.WithInitialConnWindowSize(16<<20)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conns[i].Close() }()
	}
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := conns[g%2].Invoke(context.Background(), "/inference.GRPCInferenceService/ModelInfer", message, nil,
					grpc.ForceCodecV2(prebuilt{}), grpc.MaxCallRecvMsgSize(1<<30)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// prebuilt sends bytes as they are and looks at no answer.
type prebuilt struct{}

func (prebuilt) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (prebuilt) Unmarshal(data mem.BufferSlice, v any) error { return nil }
func (prebuilt) Name() string                                { return "proto" }

// counted is a pipeline that counts.
type counted struct {
	identity
	n atomic.Int64
}

func (*counted) Visible(*infer.Envelope, string) bool { return true }

func (*counted) Refused(context.Context, *infer.Request, error) {}

func (c *counted) Infer(ctx context.Context, req *infer.Request, to infer.Sink) {
	c.n.Add(1)
	c.identity.Infer(ctx, req, to)
}

func (c *counted) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	c.Infer(ctx, req, to)
	return nil
}

// blocks is an arena for bodies of one size.
type blocks struct {
	mu   sync.Mutex
	free [][]byte
}

func (a *blocks) Alloc(n int64) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := len(a.free) - 1; last >= 0 {
		b := a.free[last]
		a.free = a.free[:last]
		return b[:n], nil
	}
	return make([]byte, n), nil
}

func (a *blocks) Free(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, b)
}

// benchServer states the server's processor time for each request and its rate.
func benchServer(b *testing.B, n int, standard bool) {
	cfg := DefaultConfig()
	cfg.Address, cfg.Port, cfg.StandardCodec = "127.0.0.1", 0, standard
	pipeline := &counted{}
	server, err := NewServer(b.Context(), cfg, Deps{Pipeline: pipeline, Control: &fakeControl{}, Bodies: &memory.Bodies{Arena: &blocks{}}})
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	for b.Loop() {
		before, count, start := cpuTime(b), pipeline.n.Load(), time.Now()
		cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestLoadClient$")
		cmd.Env = append(os.Environ(), clientEnv+"="+server.Addr().String()+" "+strconv.Itoa(n)+" 2s")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		requests := float64(pipeline.n.Load() - count)
		b.ReportMetric(float64(cpuTime(b)-before)/requests/1e3, "cpu-us/request")
		b.ReportMetric(requests/time.Since(start).Seconds(), "requests/s")
	}
	if err := server.Shutdown(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := <-served; err != nil {
		b.Fatal(err)
	}
}
