package plane

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-serve/sluice/xds"
	"github.com/sluice-serve/sluice/xds/fleet"
)

// still is a gateway that is ready and stays so.
type still struct{}

func (still) Watch(ctx context.Context, report func(fleet.State)) {
	report(fleet.State{Ready: true})
	<-ctx.Done()
}

// TestPlane asks a whole control plane: its health, its clusters, what else is
// registered, and that nothing is left once it has ended.
func TestPlane(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen, registered := 0, false
	conf := Config{Rollout: xds.DefaultRollout(), Fleet: fleet.Config{Interval: 10 * time.Millisecond, Timeout: time.Second,
		Base: xds.Topology{Gateways: []xds.Gateway{{Name: "self", HTTP: "127.0.0.1:1"}}}}}
	p, err := New(conf, Deps{Log: slog.New(slog.DiscardHandler), Listeners: []net.Listener{l}, Sources: map[string]fleet.Source{"self": still{}},
		Register: []func(grpc.ServiceRegistrar){func(grpc.ServiceRegistrar) { registered = true }},
		Watch: []func(*xds.Topology){func(top *xds.Topology) {
			mu.Lock()
			defer mu.Unlock()
			if len(top.Gateways) == 1 && top.Gateways[0].Ready {
				seen++
			}
		}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(running) }()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "test"}, TypeUrl: resource.ClusterType}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Resources) != 2 {
		t.Errorf("%d clusters, want 2", len(answer.Resources))
	}
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v; want SERVING", h, err)
	}
	if envoys, _ := p.Counts(); envoys != 1 {
		t.Errorf("%d Envoys, want 1", envoys)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen == 0 || !registered {
		t.Errorf("the topology was seen %d times; registered: %v", seen, registered)
	}
}

func TestExposed(t *testing.T) {
	for _, c := range []struct {
		address string
		mutual  bool
		ok      bool
	}{{"127.0.0.1", false, true}, {"localhost", false, true}, {"::1", false, true}, {"0.0.0.0", false, false}, {"", false, false},
		{"10.0.0.1", false, false}, {"10.0.0.1", true, true}} {
		if err := Exposed(c.address, c.mutual); (err == nil) != c.ok {
			t.Errorf("%q, mutual %v: %v", c.address, c.mutual, err)
		}
	}
}

// TestServicesThatAreNotHere refuses a topology by which Envoy would ask this control
// plane for what it has not.
func TestServicesThatAreNotHere(t *testing.T) {
	p, err := New(Config{Rollout: xds.DefaultRollout(), Fleet: fleet.Config{Interval: time.Second, Timeout: time.Second}}, Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.grpc.Stop()
	for _, c := range []struct {
		name     string
		services xds.Services
		ok       bool
	}{
		{"none", xds.Services{}, true},
		{"elsewhere", xds.Services{Authz: &xds.Service{Address: "127.0.0.1:1"}}, true},
		{"here", xds.Services{Authz: &xds.Service{}}, false},
		{"limits", xds.Services{RateLimit: &xds.Service{}}, false},
	} {
		if err := p.Set(&xds.Topology{Services: c.services}, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
