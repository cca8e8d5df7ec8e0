package picker

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	orcasvcv3 "github.com/cncf/xds/go/xds/service/orca/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/xds"
	"github.com/sluice-serve/sluice/xds/orca"
)

// reporter is a gateway that does nothing but report its load.
type reporter struct {
	orcasvcv3.UnimplementedOpenRcaServiceServer
	address string
	server  *grpc.Server

	mu      sync.Mutex
	metrics map[string]float64
}

func (r *reporter) StreamCoreMetrics(_ *orcasvcv3.OrcaLoadReportRequest, stream grpc.ServerStreamingServer[orcav3.OrcaLoadReport]) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		m := map[string]float64{}
		for k, v := range r.metrics {
			m[k] = v
		}
		r.mu.Unlock()
		if err := stream.Send(&orcav3.OrcaLoadReport{NamedMetrics: m}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (r *reporter) set(metric string, v float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics[metric] = v
}

func report(t *testing.T) *reporter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &reporter{address: l.Addr().String(), server: grpc.NewServer(), metrics: map[string]float64{orca.Ready: 1, orca.Started: 1}}
	for _, model := range []string{"plain", "stateful", "kept"} {
		r.metrics[orca.Key(orca.Instances, model, "1")] = 1
		r.metrics[orca.Key(orca.ServiceTime, model, "1")] = .01
	}
	r.metrics[orca.Key(orca.Sequence, "stateful", "1")], r.metrics[orca.Key(orca.Cache, "kept", "1")] = 1, 1
	orcasvcv3.RegisterOpenRcaServiceServer(r.server, r)
	done := make(chan error, 1)
	go func() { done <- r.server.Serve(l) }()
	t.Cleanup(func() {
		r.server.Stop()
		<-done
	})
	return r
}

// fixture is a picker over four reporters, and a client as Envoy is one.
type fixture struct {
	t          *testing.T
	server     *Server
	gateways   []*reporter
	client     procv3.ExternalProcessorClient
	topology   *xds.Topology
	authorized *corev3.Metadata // what the authorization service found out of the next calls' caller
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, server: New(Config{Interval: 5 * time.Millisecond}, Deps{Log: slog.New(slog.DiscardHandler)})}
	top := &xds.Topology{Services: xds.Services{Picker: &xds.Service{}}, Routes: []xds.Route{
		{Model: "alias", Targets: []xds.Target{{Model: "third", Weight: 1}, {Model: "plain", Weight: 9}}},
		{Model: "canary", Targets: []xds.Target{{Model: "plain", Weight: 1, Group: "new"}, {Model: "plain", Weight: 9}}}}}
	for i := range 4 {
		r := report(t)
		f.gateways = append(f.gateways, r)
		top.Gateways = append(top.Gateways, xds.Gateway{Name: "g" + strconv.Itoa(i), GRPC: r.address, HTTP: "127.0.0.1:" + strconv.Itoa(i+1)})
		if i == 3 { // takes canaries alone, and has nothing to do
			top.Gateways[i].Group = "new"
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	f.server.Register(s)
	f.server.Set(top, nil)
	f.topology = top
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f.client = procv3.NewExternalProcessorClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		if err := f.server.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		all.Wait()
	})
	f.wait("all report", func() bool { return f.known() == 4 })
	return f
}

// known counts the gateways that report.
func (f *fixture) known() int {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	n := 0
	for _, g := range f.server.state.gateways {
		if g.reported && !g.dead {
			n++
		}
	}
	return n
}

func (f *fixture) wait(what string, ok func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("after 10 s still not: %s", what)
		}
		pause, cancel := context.WithTimeout(f.t.Context(), 2*time.Millisecond)
		<-pause.Done()
		cancel()
	}
}

// call is one call through the filter: the final answer, and whether the body was asked
// for.
func (f *fixture) call(body []byte, headers ...string) (answer *procv3.ProcessingResponse, asked bool) {
	f.t.Helper()
	stream, err := f.client.Process(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	h := &procv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: body == nil}
	for i := 0; i < len(headers); i += 2 {
		h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: headers[i], RawValue: []byte(headers[i+1])})
	}
	answer = f.exchange(stream, &procv3.ProcessingRequest{MetadataContext: f.authorized,
		Request: &procv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}})
	if asked = answer.GetModeOverride().GetRequestBodyMode() == modev3.ProcessingMode_BUFFERED_PARTIAL; asked {
		answer = f.exchange(stream, &procv3.ProcessingRequest{Request: &procv3.ProcessingRequest_RequestBody{RequestBody: &procv3.HttpBody{Body: body}}})
	}
	if err := stream.CloseSend(); err != nil {
		f.t.Fatal(err)
	}
	return answer, asked
}

func (f *fixture) exchange(stream grpc.BidiStreamingClient[procv3.ProcessingRequest, procv3.ProcessingResponse], m *procv3.ProcessingRequest) *procv3.ProcessingResponse {
	f.t.Helper()
	if err := stream.Send(m); err != nil {
		f.t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		f.t.Fatal(err)
	}
	return answer
}

// said is where an answer sends its call, and why; the header and the metadata agree.
func (f *fixture) said(answer *procv3.ProcessingResponse) (address, why string) {
	f.t.Helper()
	meta := answer.GetDynamicMetadata().GetFields()
	address = meta[BalanceNamespace].GetStructValue().GetFields()[xds.DestinationHeader].GetStringValue()
	why = meta[LogNamespace].GetStructValue().GetFields()["why"].GetStringValue()
	common := answer.GetRequestHeaders().GetResponse()
	if answer.GetRequestBody() != nil {
		common = answer.GetRequestBody().GetResponse()
	}
	if header := headerOf(common, xds.DestinationHeader); header != address {
		f.t.Errorf("the header says %q, the metadata %q", header, address)
	}
	if address == "" && len(common.GetHeaderMutation().GetRemoveHeaders()) == 0 {
		f.t.Errorf("a caller's own %s stays", xds.DestinationHeader)
	}
	return address, why
}

func headerOf(r *procv3.CommonResponse, key string) string {
	for _, h := range r.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == key {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

// Which calls are decided by their headers, and which need their bodies; where they go.
func TestCalls(t *testing.T) {
	f := newFixture(t)
	for i, g := range f.gateways {
		if i != 1 && i != 3 { // so that 1 is the choice by load
			g.set(orca.Key(orca.Inflight, "plain", "1"), 50)
		}
	}
	f.wait("the load is known", func() bool {
		f.server.mu.Lock()
		defer f.server.mu.Unlock()
		for i, g := range f.server.state.gateways {
			if m := g.load.Models["plain"]["1"]; m == nil || i != 1 && i != 3 && m.Inflight != 50 {
				return false
			}
		}
		return true
	})
	grpcAt, httpAt := f.gateways[1].address, "127.0.0.1:2"
	message := framed(marshal(t, sequenced()), 0)
	for _, c := range []struct {
		name    string
		body    string
		headers []string
		address string // "*": any
		why     Why
		asked   bool
	}{
		{"an inference", "{}", []string{":path", "/v2/models/plain/infer"}, httpAt, WhyLoad, false},
		{"of a version", "{}", []string{":path", "/v2/models/plain/versions/1/infer"}, httpAt, WhyLoad, false},
		{"of one that is not there", "{}", []string{":path", "/v2/models/plain/versions/2/infer"}, "", WhyNoModel, false},
		{"an alias", "{}", []string{":path", "/v2/models/alias/infer"}, httpAt, WhyLoad, false},
		{"a canary", "{}", []string{":path", "/v2/models/canary/infer"}, httpAt + ",127.0.0.1:4", WhyLoad, false},
		{"metadata", "", []string{":path", "/v2/models/plain"}, httpAt, WhyLoad, false},
		{"no model", "", []string{":path", "/v2/health/ready", xds.DestinationHeader, "10.0.0.1:1"}, "", WhyUnnamed, false},
		{"unknown", "{}", []string{":path", "/v2/models/unknown/infer"}, "", WhyNoModel, false},
		{"answers are kept", `{"inputs":[]}`, []string{":path", "/v2/models/kept/infer"}, "*", WhyCache, true},
		{"with a key", `{"inputs":[]}`, []string{":path", "/v2/models/kept/infer", KeyHeader, "x"}, "*", WhyCache, false},
		{"a sequence", `{"parameters":{"sequence_id":1,"sequence_start":true}}`, []string{":path", "/v2/models/stateful/infer"}, "*", WhyStart, true},
		{"its second call", `{"parameters":{"sequence_id":1}}`, []string{":path", "/v2/models/stateful/infer"}, "*", WhySequence, true},
		{"its last, by headers", `{}`, []string{":path", "/v2/models/stateful/infer", xds.SequenceHeader, "1", EndHeader, "true"}, "*", WhySequence, false},
		{"gRPC", string(message), []string{":path", inferMethod, "content-type", "application/grpc"}, "", WhyNoModel, true},
		{"gRPC by headers", string(message), []string{":path", inferMethod, "content-type", "application/grpc", xds.ModelHeader, "plain"}, grpcAt, WhyLoad, false},
		{"a stream", string(message), []string{":path", streamMethod, "content-type", "application/grpc"}, "", WhyUnnamed, false},
		{"a stream by headers", string(message), []string{":path", streamMethod, "content-type", "application/grpc", xds.ModelHeader, "plain"}, grpcAt, WhyLoad, false},
		{"nonsense", "\x00", []string{":path", inferMethod, "content-type", "application/grpc"}, "", WhyUnnamed, true},
	} {
		var body []byte
		if c.body != "" {
			body = []byte(c.body)
		}
		answer, asked := f.call(body, c.headers...)
		address, why := f.said(answer)
		if c.address == "*" && address != "" {
			address = "*"
		}
		if address != c.address || why != string(c.why) || asked != c.asked {
			t.Errorf("%s: got %q by %s, body asked %v; want %q by %s, %v", c.name, address, why, asked, c.address, c.why, c.asked)
		}
	}
	if n := f.server.Counts()[WhyCache]; n != 2 {
		t.Errorf("%d picks counted by cache, want 2", n)
	}
}

// Envoy's routes by model learn the name that only the message has.
func TestModelOfMessage(t *testing.T) {
	f := newFixture(t)
	answer, _ := f.call(framed(marshal(t, sequenced()), 0), ":path", inferMethod, "content-type", "application/grpc")
	common := answer.GetRequestBody().GetResponse()
	if model, version := headerOf(common, xds.ModelHeader), headerOf(common, xds.VersionHeader); model != "m" || version != "3" || !common.GetClearRouteCache() {
		t.Errorf("got model %q version %q, clear %v", model, version, common.GetClearRouteCache())
	}
}

// The owner of a sequence dies: the next call is refused, over both protocols, until one
// begins it anew.
func TestOwnerDies(t *testing.T) {
	f := newFixture(t)
	begin, next := `{"parameters":{"sequence_id":5,"sequence_start":true}}`, `{"parameters":{"sequence_id":5}}`
	path := []string{":path", "/v2/models/stateful/infer"}
	answer, _ := f.call([]byte(begin), path...)
	first, _ := f.said(answer)
	port, err := strconv.Atoi(first[len("127.0.0.1:"):])
	if err != nil {
		t.Fatal(err)
	}
	f.gateways[port-1].server.Stop()
	f.wait("one is gone", func() bool { return f.known() == 3 })

	answer, _ = f.call([]byte(next), path...)
	r := answer.GetImmediateResponse()
	want := `{"error":"sequence 5 of model 'stateful' has ended: the gateway 'g` + strconv.Itoa(port-1) + `' that had it is gone; begin a new sequence with the START flag"}`
	if r.GetStatus().GetCode() != 503 || string(r.GetBody()) != want || r.GetDetails() != string(WhyLost) {
		t.Errorf("over HTTP: got %v, want 503 %s", r, want)
	}
	answer, _ = f.call([]byte{}, ":path", inferMethod, "content-type", "application/grpc", xds.ModelHeader, "stateful", xds.SequenceHeader, "5")
	if r := answer.GetImmediateResponse(); r.GetGrpcStatus().GetStatus() != uint32(codes.Unavailable) {
		t.Errorf("over gRPC: got %v", answer)
	}
	answer, _ = f.call([]byte(begin), path...)
	if second, why := f.said(answer); second == first || why != string(WhyStart) {
		t.Errorf("begun anew: got %s by %s", second, why)
	}
}

// Without a picker in the topology no gateway is asked for its load.
func TestNotWanted(t *testing.T) {
	f := newFixture(t)
	f.server.Set(&xds.Topology{Gateways: []xds.Gateway{{Name: "g0", GRPC: f.gateways[0].address}}}, nil)
	f.wait("nobody is watched", func() bool { return f.known() == 0 })
	answer, _ := f.call(nil, ":path", "/v2/models/plain")
	if address, why := f.said(answer); address != "" || why != string(WhyNobody) {
		t.Errorf("got %s by %s", address, why)
	}
}
