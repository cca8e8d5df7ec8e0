package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/internal/variants"
	"github.com/sluice-serve/sluice/proto/inference"
)

// carrier is the transport of this run: every test of a server runs on each.
var carrier = variants.New(TransportOwn, TransportLibrary)

func TestMain(m *testing.M) { carrier.Main(m, func() error { return leak.Find() }) }

// rig is a server on loopback, a client of it, and the fakes behind it.
type rig struct {
	server   *Server
	pipeline *fakePipeline
	control  *fakeControl
	bodies   *fakeBodies
	load     Load // nil: none
	failed   func(context.Context, string, *infer.Request, error)
	client   inference.GRPCInferenceServiceClient
	conn     *grpc.ClientConn
	regions  *regions.Registry
	// responses counts what responses hold; nil: nothing does
	responses *infer.Budget
}

type option func(*Config, *rig)

func start(t *testing.T, options ...option) *rig {
	t.Helper()
	r := &rig{pipeline: &fakePipeline{}, control: &fakeControl{watch: make(chan bool, 1)}, bodies: &fakeBodies{}}
	cfg := DefaultConfig()
	cfg.Address, cfg.Port, cfg.Transport = "127.0.0.1", 0, carrier.Now(t)
	for _, o := range options {
		o(&cfg, r)
	}
	server, err := NewServer(t.Context(), cfg, Deps{Pipeline: r.pipeline, Control: r.control, Bodies: r.bodies, Load: r.load, Regions: r.regions, Failed: r.failed, Responses: r.responses})
	if err != nil {
		t.Fatal(err)
	}
	r.server = server
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	r.dial(t, server.Addr().String())
	return r
}

func (r *rig) dial(t *testing.T, target string, options ...grpc.DialOption) {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.conn, r.client = conn, inference.NewGRPCInferenceServiceClient(conn)
}

// settled waits until every call has ended and all memory is back.
func (r *rig) settled(t *testing.T) {
	t.Helper()
	eventually(t, "memory and calls given back", func() bool {
		return r.bodies.out.Load() == 0 && r.pipeline.memories.Load() == 0 && r.pipeline.opened.Load() == r.pipeline.closed.Load()
	})
}

// onBothCodecs runs a test on the hand-written and on the generated codec.
func onBothCodecs(t *testing.T, test func(*testing.T, option)) {
	for _, standard := range []bool{false, true} {
		t.Run(fmt.Sprintf("standard=%v", standard), func(t *testing.T) {
			test(t, func(c *Config, _ *rig) { c.StandardCodec = standard })
		})
	}
}

func checkEcho(t *testing.T, m *inference.ModelInferRequest, got *inference.ModelInferResponse) {
	t.Helper()
	if got.ModelName != m.ModelName || got.ModelVersion != "1" || got.Id != m.Id || len(got.RawOutputContents) != len(m.RawInputContents) {
		t.Fatalf("got %.300v", got)
	}
	for i := range m.RawInputContents {
		if !bytes.Equal(got.RawOutputContents[i], m.RawInputContents[i]) || got.Outputs[i].Name != "OUT_"+m.Inputs[i].Name {
			t.Fatalf("output %d is not what was sent", i)
		}
	}
}

func TestInferOfAllSizes(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec)
		for _, n := range []int{0, 1, 16, 300, 2000, 5000, 10_000, 150_000, 1_000_000} {
			m := fp32Request(n)
			m.Id = "id-1"
			got, err := r.client.ModelInfer(t.Context(), m)
			if err != nil {
				t.Fatalf("%d elements: %v", n, err)
			}
			checkEcho(t, m, got)
		}
		r.settled(t)
	})
}

func TestInferAtOnce(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 50 {
					m := fp32Request(1 + (i*g*397)%20_000)
					m.Id = fmt.Sprint(g, i)
					got, err := r.client.ModelInfer(t.Context(), m)
					if err != nil || got.Id != m.Id || !bytes.Equal(got.RawOutputContents[0], m.RawInputContents[0]) {
						t.Errorf("wrong answer: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		r.settled(t)
	})
}

func TestInferFaultsOnTheWire(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec)
		for _, test := range faults {
			m := fp32Request(1)
			test.change(m)
			_, err := r.client.ModelInfer(t.Context(), m)
			if s := status.Convert(err); s.Code() != Code(test.code) || s.Message() != test.text {
				t.Errorf("%s: got %v", test.name, err)
			}
		}
		r.settled(t)
	})
}

func TestMalformedMessageOnTheWire(t *testing.T) {
	r := start(t)
	for _, method := range []string{"ModelInfer", "ModelReady", "ModelMetadata", "RepositoryIndex"} {
		err := r.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/"+method, []byte{0xff, 0xff}, new([]byte), grpc.ForceCodec(rawCodec{}))
		want := "Unable to parse request" // of all methods, as the original says
		if method != "ModelInfer" && carrier.Now(t) == TransportLibrary {
			want = "grpc: failed to unmarshal the received message: " + want
		}
		if s := status.Convert(err); s.Code() != codes.Internal || s.Message() != want {
			t.Errorf("%s: got %v", method, err)
		}
	}
	r.settled(t)
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

func TestErrorsCarryCodeTextAndReason(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec, func(_ *Config, r *rig) {
			r.pipeline.infer = func(context.Context, *infer.Request, infer.SendFunc) error {
				return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "Exceeds maximum queue size")
			}
		})
		var trailer metadata.MD
		_, err := r.client.ModelInfer(t.Context(), fp32Request(20_000), grpc.Trailer(&trailer))
		if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "Exceeds maximum queue size" {
			t.Fatalf("got %v", err)
		}
		if got := trailer.Get(ReasonKey); len(got) != 1 || got[0] != "queue_full" {
			t.Fatalf("reason is %q", got)
		}
		r.settled(t)
	})
}

func TestOpenRefusesBeforeTheMessageIsRead(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) {
		r.pipeline.open = func(context.Context, *infer.Envelope) error { return infer.Errorf(infer.PermissionDenied, "no") }
	})
	_, err := r.client.ModelInfer(t.Context(), fp32Request(20_000))
	if status.Code(err) != codes.PermissionDenied || r.bodies.calls.Load() != 0 {
		t.Fatalf("got %v, %d bodies", err, r.bodies.calls.Load())
	}
}

func TestResponsesOfTheWrongNumber(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		var count atomic.Int64
		r := start(t, codec, func(_ *Config, r *rig) {
			r.pipeline.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
				for range count.Load() {
					if err := send(r.pipeline.echo(req)); err != nil {
						return err
					}
				}
				return nil
			}
		})
		for n, want := range map[int]codes.Code{0: codes.Internal, 1: codes.OK, 2: codes.Unimplemented} {
			count.Store(int64(n))
			if _, err := r.client.ModelInfer(t.Context(), fp32Request(5000)); status.Code(err) != want {
				t.Errorf("%d responses: %v", n, err)
			}
		}
		r.settled(t)
	})
}

func TestEnvelopeAndForwardedHeaders(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		r := start(t, codec, func(c *Config, _ *rig) { c.Forward = "X-FWD" })
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-test", "1", "x-fwd-a", "1", "x-fwd-a", "2", "my-x-fwd", "3", "other", "4")
		m := fp32Request(1)
		m.Parameters = map[string]*inference.InferParameter{"x-fwd-a": intParam(1), "own": boolParam(true)}
		got, err := r.client.ModelInfer(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		env := r.pipeline.lastEnvelope()
		if env.Protocol != "grpc" || env.Action != infer.ActionInference || !env.Remote.Addr().IsLoopback() || r.pipeline.header != "1" {
			t.Fatalf("envelope %+v", env)
		}
		if p := got.Parameters; len(p) != 3 || p["x-fwd-a"].GetStringParam() != "2" || p["my-x-fwd"].GetStringParam() != "3" || !p["own"].GetBoolParam() {
			t.Fatalf("parameters %v", p)
		}
		_, err = r.client.ModelInfer(metadata.AppendToOutgoingContext(t.Context(), "triton_x-fwd", "1"), m)
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != "Header 'triton_x-fwd' is reserved for Triton usage and cannot be forwarded." {
			t.Fatalf("got %v", err)
		}
	})
}

func TestCancelAndDeadlineReachThePipeline(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		entered, left := make(chan struct{}, 1), make(chan error, 10)
		r := start(t, codec, func(_ *Config, r *rig) {
			r.pipeline.infer = func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
				select {
				case entered <- struct{}{}:
				default:
				}
				<-ctx.Done()
				left <- ctx.Err()
				return ctx.Err()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		if _, err := r.client.ModelInfer(ctx, fp32Request(20_000)); status.Code(err) != codes.Canceled {
			t.Fatalf("got %v", err)
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("the pipeline saw %v", err)
		}
		// On a busy machine a call's time may be over before it arrives.
		for allowed := 50 * time.Millisecond; len(left) == 0 && allowed < time.Minute; allowed *= 2 {
			ctx, cancel = context.WithTimeout(t.Context(), allowed)
			defer cancel()
			if _, err := r.client.ModelInfer(ctx, fp32Request(20_000)); status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("got %v", err)
			}
			if len(entered) > 0 {
				break
			}
		}
		<-left // by deadline, or cancelled by the client's own
		r.settled(t)
	})
}

func TestShutdownDrains(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	r := start(t, func(_ *Config, r *rig) {
		r.pipeline.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			close(entered)
			<-finish
			return send(r.pipeline.echo(req))
		}
	})
	answer := make(chan error, 1)
	go func() {
		_, err := r.client.ModelInfer(t.Context(), fp32Request(5000))
		answer <- err
	}()
	<-entered
	r.server.service.Stop()
	_, err := r.client.ServerMetadata(t.Context(), &inference.ServerMetadataRequest{})
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != stoppingText {
		t.Fatalf("while stopping: %v", err)
	}
	eventually(t, "the refusal is told", func() bool {
		r.pipeline.mu.Lock()
		defer r.pipeline.mu.Unlock()
		return len(r.pipeline.ended) == 1
	})
	if e := r.pipeline.ended[0]; e.Protocol != "grpc" || e.Method != "ServerMetadata" || e.Action != infer.ActionMetadata || !e.Remote.IsValid() {
		t.Errorf("the access log is told of %+v", e)
	}
	ready, err := r.client.ServerReady(t.Context(), &inference.ServerReadyRequest{})
	if err != nil || ready.Ready {
		t.Fatalf("ready while stopping: %v, %v", ready, err)
	}
	down := make(chan error, 1)
	go func() { down <- r.server.Shutdown(context.Background()) }()
	close(finish)
	if err := <-answer; err != nil {
		t.Fatalf("the call in flight: %v", err)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
}

func TestShutdownCutsOffAtItsDeadline(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, func(_ *Config, r *rig) {
		r.pipeline.infer = func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		}
	})
	answer := make(chan error, 1)
	go func() {
		_, err := r.client.ModelInfer(t.Context(), fp32Request(1))
		answer <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("shutdown: %v", err)
	}
	if err := <-answer; err == nil {
		t.Fatal("a call that was cut off succeeded")
	}
}

func TestControlCalls(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	if got, err := r.client.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil || !got.Live {
		t.Errorf("live: %v, %v", got, err)
	}
	if got, err := r.client.ServerReady(ctx, &inference.ServerReadyRequest{}); err != nil || !got.Ready {
		t.Errorf("ready: %v, %v", got, err)
	}
	if got, err := r.client.ModelReady(ctx, &inference.ModelReadyRequest{Name: "nope"}); err != nil || got.Ready {
		t.Errorf("model ready: %v, %v", got, err)
	}
	if got, err := r.client.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "m"}); err != nil || got.Config.Name != "m" {
		t.Errorf("config: %v, %v", got, err)
	}
	if env := r.pipeline.lastEnvelope(); env.Model != "m" || env.Action != infer.ActionModelConfig {
		t.Errorf("envelope of a config call: %+v", env)
	}
	if got, err := r.client.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: "m"}); err != nil || len(got.ModelStats) != 1 {
		t.Errorf("statistics: %v, %v", got, err)
	}
	if got, err := r.client.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{}); err != nil || len(got.Models) != 1 {
		t.Errorf("index: %v, %v", got, err)
	}
	if _, err := r.client.LogSettings(ctx, &inference.LogSettingsRequest{}); err != nil {
		t.Errorf("log settings: %v", err)
	}
	_, err := r.client.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "nope"})
	if s := status.Convert(err); s.Code() != codes.NotFound || s.Message() != "Request for unknown model: 'nope' is not found" {
		t.Errorf("metadata of an unknown model: %v", err)
	}
	_, err = r.client.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{RepositoryName: "x"})
	if s := status.Convert(err); s.Code() != codes.Unimplemented || s.Message() != "'repository_name' specification is not supported" {
		t.Errorf("index of a named repository: %v", err)
	}
}

func TestHealth(t *testing.T) {
	r := start(t)
	health := healthgrpc.NewHealthClient(r.conn)
	r.control.down.Store(true)
	got, err := health.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "any"})
	if err != nil || got.Status != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("check: %v, %v", got, err)
	}
	watch, err := health.Watch(t.Context(), &healthgrpc.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ready := range []bool{false, true} {
		r.control.watch <- ready
		got, err := watch.Recv()
		if err != nil || got.Status != serving(ready).Status {
			t.Fatalf("watch: %v, %v, want ready %v", got, err, ready)
		}
	}
	r.server.service.Stop()
	if got, err := watch.Recv(); err != nil || got.Status != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("watch at the stop: %v, %v", got, err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Fatalf("watch after the stop: %v", err)
	}
}

func TestReflection(t *testing.T) {
	r := start(t)
	v1, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := v1.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "inference.GRPCInferenceService.ModelInfer"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := v1.Recv(); err != nil || got.GetFileDescriptorResponse() == nil {
		t.Fatalf("v1: %v, %v", got, err)
	}
	alpha, err := reflectionv1alpha.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := alpha.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if got, err := alpha.Recv(); err != nil || len(got.GetListServicesResponse().GetService()) != 5 {
		t.Fatalf("v1alpha: %v, %v", got, err)
	}
}

func TestMessageOverTheLimit(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.MaxMessage = 1000 })
	if _, err := r.client.ModelInfer(t.Context(), fp32Request(1000)); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("got %v", err)
	}
	if _, err := r.client.ModelInfer(t.Context(), fp32Request(100)); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grpc.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false) // what a killed server leaves behind
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *Config, _ *rig) { c.UnixSocket = path })
	r.dial(t, "unix:"+path)
	m := fp32Request(20_000)
	got, err := r.client.ModelInfer(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	checkEcho(t, m, got)
	if !r.pipeline.lastEnvelope().Unix {
		t.Fatal("the envelope does not say that it came over the Unix socket")
	}
	cfg := DefaultConfig()
	cfg.Address, cfg.Port, cfg.UnixSocket = "127.0.0.1", 0, path
	if _, err := NewServer(t.Context(), cfg, Deps{}); err == nil {
		t.Fatal("a second server took the socket of a living one")
	}
}
