package h2

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/internal/variants"
)

// looped says that connections are parked between their frames, whenever they can be: every
// test of a server runs with a goroutine for each connection, and parked. Those that bring
// loops of their own run once.
var looped = variants.New(false, true)

func TestMain(m *testing.M) { looped.Main(m, func() error { return leak.Find() }) }

// heap is Memory that counts what is out.
type heap struct {
	memorytest.Plenty
	out  atomic.Int64
	most atomic.Int64 // for one message; 0: 64 MiB
	few  atomic.Bool  // says that memory is scarce
}

// Scarce says what a test wants.
func (h *heap) Scarce() bool { return h.few.Load() }

// Pressed says the same.
func (h *heap) Pressed() bool { return h.few.Load() }

func (h *heap) Body(n int64) (*infer.Buffer, error) {
	if n > cmp.Or(h.most.Load(), 64<<20) {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "no memory")
	}
	h.out.Add(n)
	return infer.NewBuffer(make([]byte, n), func(b *infer.Buffer) { h.out.Add(-n); b.Data = nil }), nil
}

// echo is a Method that answers with its message; its header says what else it does.
type echo struct {
	memory  *heap
	running atomic.Int64
	aborted atomic.Int64
}

type echoCall struct {
	e  *echo
	st *Stream
	ok bool // it was answered by who started it, without an error
}

func (e *echo) Begin(ctx context.Context, old Call) (Call, error) {
	st, ok := FromContext(ctx)
	if !ok {
		return nil, errors.New("no stream")
	}
	if st.Header("refuse") != "" {
		return nil, status.Error(codes.PermissionDenied, "no: "+st.Header("refuse"))
	}
	call, ok := old.(*echoCall)
	if !ok {
		call = &echoCall{}
	}
	call.e, call.st, call.ok = e, st, false
	return call, nil
}

func (c *echoCall) Memory(n int64, _ []byte) (*infer.Buffer, error) { return c.e.memory.Body(n + 3) }

func (c *echoCall) Quick() bool { return c.st.id%4 == 1 } // so that both ways are gone

func (c *echoCall) Sent() bool { return c.ok }

func (c *echoCall) Abort(error) { c.e.aborted.Add(1) }

// Start answers in all ways that there are: at once, later, on a goroutine that waits.
func (c *echoCall) Start(memory *infer.Buffer, message []byte) (wait func()) {
	answer := func() {
		parts, err := c.serve(memory, message)
		c.ok = err == nil && c.st.Header("do") != "wait"
		infer.Flush(c.st.Answer(parts, err))
	}
	switch way := c.st.Header("do"); {
	case way == "wait", way == "" && c.st.id%8 == 1:
		return answer
	case way == "" && c.st.id%8 == 3:
		go answer()
	default:
		answer()
	}
	return nil
}

func (c *echoCall) serve(memory *infer.Buffer, message []byte) (mem.BufferSlice, error) {
	c.e.running.Add(1)
	defer c.e.running.Add(-1)
	defer memory.Release()
	switch c.st.Header("do") {
	case "fail":
		c.st.SetTrailer("reason", "asked")
		return nil, status.Error(codes.FailedPrecondition, "100 % wrong: ü\n")
	case "wait":
		<-c.st.Done()
		return nil, status.FromContextError(c.st.Err()).Err()
	case "panic":
		panic("asked")
	case "gzip":
		c.st.Compress("gzip")
	}
	half := len(message) / 2
	return mem.BufferSlice{mem.SliceBuffer(bytes.Clone(message[:half])), mem.SliceBuffer(bytes.Clone(message[half:]))}, nil
}

type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
		return nil
	}
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// fixture is a server on loopback.
type fixture struct {
	s      *Server
	echo   *echo
	memory *heap
	health *health.Server
	addr   string
}

func start(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	if cfg.Loops == nil && looped.Now(t) {
		cfg.Loops = []*loop.Loop{looptest.Start(t)}
	}
	f := &fixture{memory: &heap{}, health: health.NewServer()}
	f.echo = &echo{memory: f.memory}
	var err error
	f.s, err = New(cfg, Deps{Memory: f.memory, Codec: encoding.GetCodecV2("proto"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f.s.settled, f.s.turnTime = 0, int64(time.Hour)
	f.s.relief.every, f.s.relief.patience = 20*time.Millisecond, int64(time.Second)
	f.s.handle("/test.Echo/Echo", f.echo)
	healthpb.RegisterHealthServer(f.s, f.health)
	reflection.Register(f.s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- f.s.Serve(l) }()
	t.Cleanup(func() {
		f.health.Shutdown()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := f.memory.out.Load(); n != 0 {
			t.Errorf("%d bytes of messages were not given back", n)
		}
	})
	return f
}

func (f *fixture) dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(64<<20))}, opts...)
	cc, err := grpc.NewClient(f.addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func call(ctx context.Context, cc *grpc.ClientConn, in []byte, opts ...grpc.CallOption) ([]byte, error) {
	var out []byte
	err := cc.Invoke(ctx, "/test.Echo/Echo", &in, &out, opts...)
	return out, err
}

func random(t testing.TB, n int) []byte {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEchoSizes(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	for _, n := range []int{0, 1, 5, 100, 4000, 4096, 16379, 16384, 70000, 600 << 10, 5 << 20, 20 << 20} {
		in := random(t, n)
		out, err := call(t.Context(), cc, in)
		if err != nil || !bytes.Equal(in, out) {
			t.Fatalf("%d bytes: got %d, equal %v: %v", n, len(out), bytes.Equal(in, out), err)
		}
		if n > 600<<10 {
			continue // the compressor takes its time under the race detector
		}
		out, err = call(metadata.AppendToOutgoingContext(t.Context(), "do", "gzip"), cc, in, grpc.UseCompressor(gzip.Name))
		if err != nil || !bytes.Equal(in, out) {
			t.Fatalf("%d bytes compressed: got %d: %v", n, len(out), err)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	f := start(t, nil)
	var wg sync.WaitGroup
	for range 3 {
		cc := f.dial(t)
		for range 32 {
			wg.Go(func() {
				for range 20 {
					in := random(t, 10+int(time.Now().UnixNano()%30000))
					out, err := call(t.Context(), cc, in)
					if err != nil || !bytes.Equal(in, out) {
						t.Errorf("%d bytes: got %d: %v", len(in), len(out), err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestErrors(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxMessage = 1 << 20 })
	cc := f.dial(t)
	for _, c := range []struct {
		name, key, value, path string
		size                   int
		code                   codes.Code
		text                   string
	}{
		{"of the handler", "do", "fail", "", 10, codes.FailedPrecondition, "100 % wrong: ü\n"},
		{"refused by its header", "refuse", "you", "", 100 << 10, codes.PermissionDenied, "no: you"},
		{"a panic", "do", "panic", "", 10, codes.Internal, "internal error"},
		{"unknown service", "", "", "/none.Such/Method", 1, codes.Unimplemented, "unknown service none.Such"},
		{"unknown method", "", "", "/grpc.health.v1.Health/Such", 1, codes.Unimplemented, "unknown method Such for service grpc.health.v1.Health"},
		{"too large", "", "", "", 2 << 20, codes.ResourceExhausted, "grpc: received message larger than max (2097152 vs. 1048576)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if c.key != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, c.key, c.value)
			}
			path := c.path
			if path == "" {
				path = "/test.Echo/Echo"
			}
			in, out := make([]byte, c.size), []byte(nil)
			var trailer metadata.MD
			err := cc.Invoke(ctx, path, &in, &out, grpc.Trailer(&trailer))
			if s, _ := status.FromError(err); s.Code() != c.code || s.Message() != c.text {
				t.Errorf("got %v %q, want %v %q", s.Code(), s.Message(), c.code, c.text)
			}
			if c.value == "fail" && (len(trailer["reason"]) != 1 || trailer["reason"][0] != "asked") {
				t.Errorf("trailer: got %v", trailer)
			}
		})
	}
	if _, err := call(t.Context(), cc, []byte("still")); err != nil {
		t.Errorf("the connection did not survive: %v", err)
	}
}

func TestDeadlineAndCancel(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	wait := metadata.AppendToOutgoingContext(t.Context(), "do", "wait")
	ctx, cancel := context.WithTimeout(wait, 30*time.Millisecond)
	defer cancel()
	if _, err := call(ctx, cc, []byte("x")); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("deadline: got %v", err)
	}
	ctx, cancel = context.WithCancel(wait)
	done := make(chan error, 1)
	go func() { _, err := call(ctx, cc, []byte("x")); done <- err }()
	poll(t, "the call runs", func() bool { return f.echo.running.Load() == 1 })
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("cancel: got %v", err)
	}
	poll(t, "the handler sees the cancel", func() bool { return f.echo.running.Load() == 0 })
}

func poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}

func TestConnectionLost(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "do", "wait")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _ = call(ctx, cc, make([]byte, 100<<10)) })
	}
	poll(t, "the calls run", func() bool { return f.echo.running.Load() == 20 })
	if err := cc.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	poll(t, "the handlers end", func() bool { return f.echo.running.Load() == 0 })
}

func TestServices(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	client := healthpb.NewHealthClient(cc)
	got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("Check: %v %v", got, err)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("Check of an unknown service: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		want := []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING,
			healthpb.HealthCheckResponse_NOT_SERVING}[i%2]
		m, err := watch.Recv()
		if err != nil || m.Status != want {
			t.Fatalf("Watch: got %v %v, want %v", m, err, want)
		}
		f.health.SetServingStatus("", []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING,
			healthpb.HealthCheckResponse_SERVING}[i%2])
	}
	cancel()
	for err == nil { // the last change may be on its way
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("Watch after its cancel: %v", err)
	}
	info, err := reflectpb.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := info.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		m, err := info.Recv()
		if err != nil || len(m.GetListServicesResponse().GetService()) < 2 {
			t.Fatalf("reflection: %v %v", m, err)
		}
	}
	if err := info.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := info.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// TestDrain sees that a shutdown loses no call.
func TestDrain(t *testing.T) {
	f := start(t, nil)
	var failed, served atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		cc := f.dial(t)
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := call(t.Context(), cc, []byte("x"))
				switch {
				case err == nil:
					served.Add(1)
				case status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "connect"):
					return // nobody listens any more
				default:
					failed.Add(1)
					t.Errorf("call: %v", err)
					return
				}
			}
		})
	}
	poll(t, "calls", func() bool { return served.Load() > 100 })
	stop, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	if err := f.s.Shutdown(stop); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	cancel()
	wg.Wait()
}

func TestShutdownCutsOff(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	done := make(chan error, 1)
	go func() {
		_, err := call(metadata.AppendToOutgoingContext(t.Context(), "do", "wait"), cc, []byte("x"))
		done <- err
	}()
	poll(t, "the call runs", func() bool { return f.echo.running.Load() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-done; status.Code(err) != codes.Unavailable {
		t.Errorf("the call: %v", err)
	}
}

// registerPile adds a service with one streaming method, whose messages are bytes.
func registerPile(s *Server, serve func(receive func() ([]byte, error)) error) {
	s.deps.Codec = raw{}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Pile", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: "Pile",
		ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			return serve(func() (b []byte, err error) { err = stream.RecvMsg(&b); return b, err })
		}}}}, struct{}{})
}

func gzipped() grpc.CallOption { return grpc.UseCompressor(gzip.Name) }
