package plane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-serve/sluice/internal/leak"
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
	defer func() {
		if err := leak.Find(); err != nil {
			t.Error(err)
		}
	}()
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
	if m := metrics(p); m["sluice_xds_envoys"] != 1 || m["sluice_xds_rejected_updates_total"] != 0 || m["sluice_xds_held_routes"] != 0 || len(m) != 3 {
		t.Errorf("metrics %v", m)
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

// metrics are the figures of p by name.
func metrics(p *Plane) map[string]float64 {
	out := map[string]float64{}
	note := func(name, _ string, v float64, labels ...string) {
		out[strings.Join(append([]string{name}, labels...), " ")] += v
	}
	p.Metrics(note, note)
	return out
}

// TestSwitchOutlivesRestart stops a control plane while a route waits for its new target,
// and starts another one: the old target counts on, and the picker is told so.
func TestSwitchOutlivesRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	var told *xds.Topology
	begin := func() *Plane {
		t.Helper()
		p, err := New(Config{Rollout: xds.DefaultRollout(), State: file}, Deps{Log: slog.New(slog.DiscardHandler),
			Watch: []func(*xds.Topology){func(t *xds.Topology) { told = t }}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.grpc.Stop)
		return p
	}
	set := func(p *Plane, target string, ready ...string) {
		t.Helper()
		g := xds.Gateway{Name: "a", HTTP: "127.0.0.1:1", Ready: true, Models: []xds.Model{}}
		for _, m := range ready {
			g.Models = append(g.Models, xds.Model{Name: m, Version: "1", Ready: true})
		}
		if err := p.Set(&xds.Topology{Gateways: []xds.Gateway{g}, Routes: []xds.Route{{Model: "alias", Targets: []xds.Target{{Model: target}}}}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	p := begin()
	set(p, "old", "old")
	set(p, "new", "old")
	if got := told.Routes[0].Targets[0].Model; got != "old" || len(p.Held()) != 1 {
		t.Fatalf("the route goes to %s, %d wait", got, len(p.Held()))
	}
	p = begin()
	set(p, "new", "old")
	if got := told.Routes[0].Targets[0].Model; got != "old" || metrics(p)["sluice_xds_held_routes"] != 1 {
		t.Errorf("after a restart the route goes to %s, %v", got, metrics(p))
	}
	set(p, "new", "old", "new")
	if got := told.Routes[0].Targets[0].Model; got != "new" {
		t.Errorf("once it is ready the route goes to %s", got)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	set(begin(), "newer", "new") // a file that can't be read is no reason not to start
}

// TestServed lets in Envoys by their names, and nobody else whom the same roots signed.
func TestServed(t *testing.T) {
	spiffe := &url.URL{Scheme: "spiffe", Host: "mesh", Path: "/envoy"}
	c := served(&tls.Config{}, []string{"envoy.mesh", spiffe.String()})
	for _, one := range []struct {
		name string
		peer []*x509.Certificate
		ok   bool
	}{
		{"DNS name", []*x509.Certificate{{DNSNames: []string{"other", "envoy.mesh"}}}, true},
		{"URI", []*x509.Certificate{{URIs: []*url.URL{spiffe}}}, true},
		{"another", []*x509.Certificate{{DNSNames: []string{"app.mesh"}, Subject: pkix.Name{CommonName: "envoy.mesh"}}}, false},
		{"of the authority", []*x509.Certificate{{DNSNames: []string{"app.mesh"}}, {DNSNames: []string{"envoy.mesh"}}}, false},
		{"none", nil, false},
	} {
		if err := c.VerifyConnection(tls.ConnectionState{PeerCertificates: one.peer}); (err == nil) != one.ok {
			t.Errorf("%s: %v", one.name, err)
		}
	}
	if plain := (&tls.Config{}); served(plain, nil) != plain {
		t.Error("without names it is not what it was")
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
