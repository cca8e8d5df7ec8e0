package rls

import (
	"context"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	ratelimitcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-serve/sluice/infer"
)

// dial serves decide on loopback and gives a real client's side of it.
func dial(t *testing.T, decide Decide) ratelimitv3.RateLimitServiceClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	New(decide).Register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ratelimitv3.NewRateLimitServiceClient(conn)
}

func descriptor(pairs ...string) *ratelimitcommonv3.RateLimitDescriptor {
	d := &ratelimitcommonv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitcommonv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func TestDescriptorsBecomeCalls(t *testing.T) {
	var got []Call
	c := dial(t, func(_ context.Context, call Call) Verdict {
		got = append(got, call)
		return Verdict{Rule: "r", Rate: 0.5, Left: 7}
	})
	own := descriptor("model", "n")
	own.HitsAddend = wrapperspb.UInt64(9)
	resp, err := c.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "sluice", HitsAddend: 3, Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{
		descriptor("principal", "a", "group", "g", "group", "h", "model", "m", "action", "model-config", "remote_address", "192.0.2.7", "bytes", "12", "generic_key", "x"),
		descriptor("model", "another", "method", "POST", "path", "/v2/models/a%20b/versions/2/infer?x=y"), own,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("%d calls", len(got))
	}
	if a := got[0]; a.Principal != "a" || len(a.Groups) != 2 || a.Model != "m" || a.Action != infer.ActionModelConfig || a.Remote.String() != "192.0.2.7" || a.Hits != 3 || a.Bytes != 12 {
		t.Errorf("first: %+v", a)
	}
	if b := got[1]; b.Action != infer.ActionInference || b.Model != "a b" || b.Hits != 3 {
		t.Errorf("second: %+v", b)
	}
	if b := got[2]; b.Action != infer.ActionInference || b.Model != "n" || b.Hits != 9 {
		t.Errorf("third: %+v", b)
	}
	st := resp.GetStatuses()[0]
	if resp.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || st.GetCurrentLimit().GetRequestsPerUnit() != 30 ||
		st.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_MINUTE || st.GetCurrentLimit().GetName() != "r" || st.GetLimitRemaining() != 7 {
		t.Errorf("answer %v", resp)
	}
}

func TestOverLimit(t *testing.T) {
	c := dial(t, func(_ context.Context, call Call) Verdict {
		if call.Principal == "a" {
			return Verdict{Over: true, Rule: "r", Rate: 3, Retry: 1500 * time.Millisecond, Reason: infer.ReasonRate}
		}
		return Verdict{Left: -1}
	})
	resp, err := c.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{descriptor("principal", "b"), descriptor("principal", "a")}})
	if err != nil {
		t.Fatal(err)
	}
	over := ratelimitv3.RateLimitResponse_OVER_LIMIT
	if resp.GetOverallCode() != over || resp.GetStatuses()[0].GetCode() != ratelimitv3.RateLimitResponse_OK || resp.GetStatuses()[1].GetCode() != over {
		t.Errorf("answer %v", resp)
	}
	if d := resp.GetStatuses()[1].GetDurationUntilReset().AsDuration(); d != 1500*time.Millisecond {
		t.Errorf("reset in %v", d)
	}
	got := map[string]string{}
	for _, h := range resp.GetResponseHeadersToAdd() {
		got[h.GetKey()] = h.GetValue()
	}
	if got["retry-after"] != "2" || got["x-sluice-reason"] != "rate_limited" {
		t.Errorf("headers %v", got)
	}
}

// What a client claims in a header does not stand against the path that is served; a
// descriptor that adds no hits, or takes some back, looks; names have a bound.
func TestDescriptorsAreNotBelieved(t *testing.T) {
	var got Call
	c := dial(t, func(_ context.Context, call Call) Verdict { got = call; return Verdict{} })
	none, back := descriptor("model", "m"), descriptor("model", "m")
	none.HitsAddend = wrapperspb.UInt64(0)
	back.HitsAddend, back.IsNegativeHits = wrapperspb.UInt64(7), true
	long := strings.Repeat("x", 5000)
	for _, w := range []struct {
		name string
		d    *ratelimitcommonv3.RateLimitDescriptor
		want Call
	}{
		{"path", descriptor("model", "cheap", "method", "POST", "path", "/v2/models/dear/infer"), Call{Model: "dear", Action: infer.ActionInference, Hits: 1}},
		{"message", descriptor("model", "m", "path", "/inference.GRPCInferenceService/ModelInfer"), Call{Model: "m", Action: infer.ActionInference, Hits: 1}},
		{"no hits", none, Call{Model: "m", Action: infer.ActionInference}},
		{"hits back", back, Call{Model: "m", Action: infer.ActionInference}},
		{"long", descriptor("principal", long, "model", long), Call{Principal: long[:1024], Model: long[:1024], Action: infer.ActionInference, Hits: 1}},
	} {
		if _, err := c.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{w.d}}); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
		if !reflect.DeepEqual(got, w.want) {
			t.Errorf("%s: %.200v, want %.200v", w.name, got, w.want)
		}
	}
}

func TestWrongQuestions(t *testing.T) {
	c := dial(t, func(context.Context, Call) Verdict { return Verdict{} })
	many := make([]*ratelimitcommonv3.RateLimitDescriptor, maxDescriptors+1)
	for i := range many {
		many[i] = descriptor("model", "m")
	}
	for _, d := range [][]*ratelimitcommonv3.RateLimitDescriptor{many, {descriptor("action", "dance")}, {descriptor("remote_address", "here")},
		{descriptor("bytes", "-1")}, {descriptor(make([]string, 2*maxEntries+2)...)}} {
		if _, err := c.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Descriptors: d}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%.80v: %v", d, err)
		}
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		path   string
		action infer.Action
		model  string
	}{
		{"/v2", infer.ActionMetadata, ""},
		{"/", infer.ActionMetadata, ""},
		{"/v2/health/ready", infer.ActionHealth, ""},
		{"/v2/models/m", infer.ActionMetadata, "m"},
		{"/v2/models/m/versions/1", infer.ActionMetadata, "m"},
		{"/v2/models/m/ready", infer.ActionHealth, "m"},
		{"/v2/models/m/versions/1/ready", infer.ActionHealth, "m"},
		{"/v2/models/m/infer", infer.ActionInference, "m"},
		{"/v2/models/m/generate_stream", infer.ActionInference, "m"},
		{"/v2/models/m/config", infer.ActionModelConfig, "m"},
		{"/v2/models/m/stats", infer.ActionStatistics, "m"},
		{"/v2/models/stats", infer.ActionStatistics, ""},
		{"/v2/models/m/trace/setting", infer.ActionTrace, "m"},
		{"/v2/trace/setting", infer.ActionTrace, ""},
		{"/v2/logging", infer.ActionLogging, ""},
		{"/v2/repository/index", infer.ActionModelRepository, ""},
		{"/v2/repository/models/m/load", infer.ActionModelRepository, "m"},
		{"/v2/systemsharedmemory/status", infer.ActionSharedMemory, ""},
		{"/inference.GRPCInferenceService/ModelInfer", infer.ActionInference, ""},
		{"/inference.GRPCInferenceService/ModelStreamInfer", infer.ActionInference, ""},
		{"/inference.GRPCInferenceService/CudaSharedMemoryRegister", infer.ActionSharedMemory, ""},
		{"/inference.GRPCInferenceService/RepositoryModelLoad", infer.ActionModelRepository, ""},
		{"/inference.GRPCInferenceService/ServerMetadata", infer.ActionMetadata, ""},
	} {
		if a, m := Target("POST", c.path); a != c.action || m != c.model {
			t.Errorf("%s: %v of %q, want %v of %q", c.path, a, m, c.action, c.model)
		}
	}
}
