package grpcapi

import (
	"context"
	"slices"
	"testing"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	orcasvcv3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// figures is a Load that always says the same.
type figures struct{}

func (figures) Trailer(asked string) (key, value string) {
	switch asked {
	case "bin":
		return "endpoint-load-metrics-bin", "\x00\xff\x01"
	case "text":
		return "endpoint-load-metrics", "TEXT eps=1"
	}
	return "", ""
}

func (figures) Full() *orcav3.OrcaLoadReport {
	return &orcav3.OrcaLoadReport{ApplicationUtilization: .5, NamedMetrics: map[string]float64{"x": 2}}
}

// loadRig is a server over p that reports its load, and a client.
func loadRig(t *testing.T, carrier Transport, p Pipeline) (*Server, *grpc.ClientConn) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Address, cfg.Port, cfg.Transport = "127.0.0.1", 0, carrier
	server, err := NewServer(t.Context(), cfg, Deps{Pipeline: p, Control: &fakeControl{}, Bodies: &fakeBodies{}, Load: figures{}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	conn, err := grpc.NewClient("passthrough:///"+server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, conn
}

func small() *inference.ModelInferRequest {
	return &inference.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{{1, 2, 3, 4}},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "INT32", Shape: []int64{1}}}}
}

func TestLoadTrailer(t *testing.T) {
	for _, carrier := range []Transport{TransportOwn, TransportLibrary} {
		_, conn := loadRig(t, carrier, &fakePipeline{})
		client := inference.NewGRPCInferenceServiceClient(conn)
		for asked, want := range map[string][2]string{"": {"endpoint-load-metrics", ""}, "text": {"endpoint-load-metrics", "TEXT eps=1"},
			"bin": {"endpoint-load-metrics-bin", "\x00\xff\x01"}} {
			var trailer metadata.MD
			ctx := metadata.AppendToOutgoingContext(t.Context(), "endpoint-load-metrics-format", asked)
			if _, err := client.ModelInfer(ctx, small(), grpc.Trailer(&trailer)); err != nil {
				t.Fatal(err)
			}
			var values []string
			if want[1] != "" {
				values = []string{want[1]}
			}
			if got := trailer.Get(want[0]); !slices.Equal(got, values) {
				t.Errorf("%s, asked %q: got %q, want %q", carrier, asked, got, values)
			}
		}
	}
}

// Reports come at once, then at the interval, and end when the server stops.
func TestLoadStream(t *testing.T) {
	for _, carrier := range []Transport{TransportOwn, TransportLibrary} {
		server, conn := loadRig(t, carrier, &fakePipeline{})
		stream, err := orcasvcv3.NewOpenRcaServiceClient(conn).StreamCoreMetrics(t.Context(),
			&orcasvcv3.OrcaLoadReportRequest{ReportInterval: durationpb.New(time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 3 {
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if r.ApplicationUtilization != .5 || r.NamedMetrics["x"] != 2 {
				t.Errorf("%s: got %v", carrier, r)
			}
		}
		if took := time.Since(begin); took < 2*minReportInterval-20*time.Millisecond {
			t.Errorf("%s: three reports in %v, though %v must lie between two", carrier, took, minReportInterval)
		}
		server.service.Stop()
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: ended with %v", carrier, err)
		}
	}
}

func TestReportInterval(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{0: defaultReportInterval, -time.Second: defaultReportInterval,
		time.Millisecond: minReportInterval, time.Second: time.Second, time.Hour: maxReportInterval} {
		if got := reportInterval(&orcasvcv3.OrcaLoadReportRequest{ReportInterval: durationpb.New(asked)}); got != want {
			t.Errorf("asked for %v: got %v, want %v", asked, got, want)
		}
	}
}

// closedPipeline lets nobody in.
type closedPipeline struct{ fakePipeline }

func (*closedPipeline) Open(_ context.Context, env *infer.Envelope) (wait func() error, err error) {
	return nil, infer.Errorf(infer.PermissionDenied, "%s is not for you", env.Action)
}

// The report is for who may read statistics.
func TestLoadIsGuarded(t *testing.T) {
	for _, carrier := range []Transport{TransportOwn, TransportLibrary} {
		_, conn := loadRig(t, carrier, &closedPipeline{})
		stream, err := orcasvcv3.NewOpenRcaServiceClient(conn).StreamCoreMetrics(t.Context(), &orcasvcv3.OrcaLoadReportRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "statistics is not for you" {
			t.Errorf("%s: got %v", carrier, err)
		}
		var trailer metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "endpoint-load-metrics-format", "text")
		if _, err := inference.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, small(), grpc.Trailer(&trailer)); err == nil || len(trailer.Get("endpoint-load-metrics")) > 0 {
			t.Errorf("%s: a refused call: %v, trailer %v", carrier, err, trailer)
		}
	}
}
