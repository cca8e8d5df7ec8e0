package workers_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/identity"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

func TestMain(m *testing.M) {
	leak.Main(m, func() {
		if dir, ok := built.Load().(string); ok {
			os.RemoveAll(dir)
		}
	})
}

// gateway is the other end of a worker: as little of a gateway as a test needs.
type gateway struct {
	conn   *grpc.ClientConn
	client worker.WorkerClient

	requests  *shm.Arena
	responses *shm.Arena
	lane      *shm.Lane
	done      chan error // of the worker's Run
	conns     net.Conn   // the gateway's end of the inherited connection
	pass      int        // the gateway's end of the socket of regions
}

func identityOnly() map[string]backend.Factory {
	return map[string]backend.Factory{"identity": identity.New}
}

func logger(t testing.TB) *slog.Logger {
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func dup(t testing.TB, fd int) int { return must(unix.Dup(fd))(t) }

// sockets is a connected pair of Unix sockets.
func sockets(t testing.TB) (net.Conn, net.Conn) {
	fds := must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		ends[i] = must(net.FileConn(f))(t)
		f.Close()
	}
	return ends[0], ends[1]
}

// startLocal runs a worker in this process that shares memory with the gateway.
func startLocal(t testing.TB, config workers.Config, deps workers.Deps, responseBytes int64) *gateway {
	g := &gateway{
		requests:  must(shm.NewArena("requests", 16<<20))(t),
		responses: must(shm.NewPeerArena("responses", responseBytes))(t),
		lane:      must(shm.NewLane(shm.LaneConfig{Mailboxes: 16, Completions: 16, Releases: 64}))(t),
		done:      make(chan error, 1),
	}
	ours, theirs := sockets(t)
	g.conns = ours
	if deps.Log == nil {
		deps.Log = logger(t)
	}
	deps.Conn = theirs
	deps.Shared = &workers.Shared{
		Requests:  must(shm.OpenArena(dup(t, g.requests.FD()), false))(t),
		Responses: must(shm.OpenArena(dup(t, g.responses.FD()), true))(t),
		Lane:      must(shm.OpenLane(dup(t, g.lane.FD()), dup(t, g.lane.Bell())))(t),
	}
	w := must(workers.New(config, deps))(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { g.done <- w.Run(ctx, nil) }()
	g.dial(t, func(context.Context, string) (net.Conn, error) { return ours, nil })
	t.Cleanup(func() {
		g.conn.Close()
		cancel()
		g.wait(t)
		g.requests.Close()
		g.responses.Close()
		g.lane.Close()
	})
	return g
}

func (g *gateway) dial(t testing.TB, dialer func(context.Context, string) (net.Conn, error)) {
	g.conn = must(grpc.NewClient("passthrough:///worker", grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30))))(t)
	g.client = worker.NewWorkerClient(g.conn)
}

// wait expects the worker's end.
func (g *gateway) wait(t testing.TB) {
	t.Helper()
	select {
	case err := <-g.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		g.done <- nil
	case <-time.After(10 * time.Second):
		t.Error("the worker did not end")
	}
}

func (g *gateway) hello(t testing.TB, lane bool) *worker.HelloResponse {
	t.Helper()
	ask := &worker.HelloRequest{Protocol: workers.Protocol, InputsRead: true, GoesOn: true}
	if lane {
		ask.Lane = []uint32{wire.Table}
	}
	return must(g.client.Hello(ctx(t), ask))(t)
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return c
}

func fp32Config(params map[string]string) *modelconfig.ModelConfig {
	c := &modelconfig.ModelConfig{
		Name: "m", Backend: "identity", MaxBatchSize: 8, Parameters: map[string]*modelconfig.ModelParameter{},
		Input:  []*modelconfig.ModelInput{{Name: "INPUT0", DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}}},
		Output: []*modelconfig.ModelOutput{{Name: "OUTPUT0", DataType: modelconfig.DataType_TYPE_FP32, Dims: []int64{-1}}},
	}
	for k, v := range params {
		c.Parameters[k] = &modelconfig.ModelParameter{StringValue: v}
	}
	return c
}

func loadRequest(handle uint64, c *modelconfig.ModelConfig, mailboxes ...uint32) *worker.LoadRequest {
	r := &worker.LoadRequest{Handle: handle, Model: "m", Version: 1, ModelDir: "/r/m", ModelFile: "/r/m/1/model.x", Config: c}
	for _, box := range mailboxes {
		r.Instances = append(r.Instances, &worker.InstanceSpec{Name: "m_0", Mailbox: box})
	}
	return r
}

func (g *gateway) load(t testing.TB, r *worker.LoadRequest) {
	t.Helper()
	must(g.client.Load(ctx(t), r))(t)
}

// posted is a batch in the request arena.
type posted struct {
	mem   []byte
	flags []byte
}

// layOut writes a batch of the inputs' data to the request arena.
func (g *gateway) layOut(t testing.TB, b *wire.Batch, data ...[]byte) *posted {
	k := 0
	for i := range b.Inputs {
		for j := range b.Inputs[i].Segments {
			mem := must(g.requests.Alloc(int64(len(data[k]))))(t)
			copy(mem, data[k])
			off, _ := g.requests.Offset(mem)
			b.Inputs[i].Segments[j] = wire.Segment{Offset: off, Length: int64(len(mem))}
			k++
		}
	}
	d := wire.AppendBatch(nil, b)
	n := int64(len(d))
	mem := must(g.requests.Alloc(wire.FlagsOffset(n) + wire.FlagsSize(len(b.Requests))))(t)
	clear(mem)
	copy(mem, d)
	return &posted{mem: mem[:n], flags: mem[wire.FlagsOffset(n):]}
}

func (g *gateway) post(box int, p *posted) {
	off, _ := g.requests.Offset(p.mem)
	g.lane.Post(box, off, int64(len(p.mem)))
}

// result waits for the next completion and decodes it.
func (g *gateway) result(t testing.TB) (shm.Completion, *wire.Result) {
	t.Helper()
	var c [1]shm.Completion
	if _, err := g.lane.Completions(c[:], 10*time.Second); err != nil {
		t.Fatalf("no result: %v", err)
	}
	res := &wire.Result{}
	if !c[0].NoMemory {
		src := must(g.responses.View(c[0].Offset, c[0].Length))(t)
		if err := wire.DecodeResult(append([]byte{}, src...), res); err != nil {
			t.Fatal(err)
		}
	}
	return c[0], res
}

func (g *gateway) data(t testing.TB, o wire.Output) []byte {
	return must(g.responses.View(o.Data.Offset, o.Data.Length))(t)
}

// rowsBatch is a batch of requests with one row of n FP32 each, in one segment.
func rowsBatch(id uint64, requests, n int) (*wire.Batch, []byte) {
	b := &wire.Batch{ID: id, Rows: requests}
	for i := range requests {
		b.Requests = append(b.Requests, wire.Request{ID: "r", Rows: 1, Cancel: uint32(i)})
	}
	b.Inputs = []wire.Input{{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{int64(requests), int64(n)}, Segments: make([]wire.Segment, 1)}}
	data := make([]byte, 4*requests*n)
	for i := range data {
		data[i] = byte(i)
	}
	return b, data
}

// streamOf is an Execute call with its results in a channel.
type streamOf struct {
	call    grpc.BidiStreamingClient[worker.ExecuteRequest, worker.ExecuteResponse]
	results chan *worker.ExecuteResponse
	err     error // valid when results is closed
	wg      sync.WaitGroup
}

func openStream(t testing.TB, client worker.WorkerClient) *streamOf {
	c, cancel := context.WithCancel(t.Context())
	s := &streamOf{call: must(client.Execute(c))(t), results: make(chan *worker.ExecuteResponse, 64)}
	s.wg.Go(func() {
		defer close(s.results)
		for {
			r, err := s.call.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.results <- r
		}
	})
	t.Cleanup(func() {
		cancel()
		s.wg.Wait()
	})
	return s
}

func (s *streamOf) next(t testing.TB) (*worker.ExecuteResponse, *wire.Result) {
	t.Helper()
	select {
	case r, ok := <-s.results:
		if !ok {
			t.Fatalf("the stream ended: %v", s.err)
		}
		res := &wire.Result{}
		if err := wire.ReadResult(r.Result, r.Tensors, res); err != nil {
			t.Fatal(err)
		}
		return r, res
	case <-time.After(10 * time.Second):
		t.Fatal("no result")
		return nil, nil
	}
}
