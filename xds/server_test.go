package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// realSecrets puts a certificate of its own in place of the examples' words.
func realSecrets(t *testing.T, s Secrets) Secrets {
	t.Helper()
	if len(s) == 0 {
		return s
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return Secrets{"c": cert, "r": cert, "k": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// quick are times for tests.
func quick() RolloutConfig {
	return RolloutConfig{Batch: time.Millisecond, MaxBatch: 10 * time.Millisecond, Settle: time.Millisecond, MaxSettle: 10 * time.Second,
		Grace: 50 * time.Millisecond}
}

// serve runs a Server on a port of its own and gives a client for it.
func serve(t *testing.T) (*Server, discoveryv3.AggregatedDiscoveryServiceClient) {
	t.Helper()
	s := New(quick(), Deps{Log: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	ctx, cancel := context.WithCancel(t.Context())
	s.Register(ctx, g)
	done := make(chan error, 2)
	go func() { done <- g.Serve(l) }()
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		g.Stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return s, discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func topologyOf(gateways ...Gateway) *Topology { return &Topology{Gateways: gateways} }

// TestStateOfTheWorld follows one Envoy: new clusters come, routes follow once it has
// taken them, and what is gone goes after the grace.
func TestStateOfTheWorld(t *testing.T) {
	s, client := serve(t)
	if _, err := s.Set(topologyOf(ready("a", "127.0.0.1:1", "127.0.0.1:2")), nil); err != nil {
		t.Fatal(err)
	}
	stream, err := client.StreamAggregatedResources(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "test", Locality: &corev3.Locality{Zone: "z"}}
	send := func(kind string, last *discoveryv3.DiscoveryResponse, names ...string) {
		r := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: kind, ResourceNames: names}
		if last != nil {
			r.VersionInfo, r.ResponseNonce = last.VersionInfo, last.Nonce
		}
		node = nil // Envoy says it once
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	next := func(kind string) *discoveryv3.DiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.TypeUrl != kind {
			t.Fatalf("%s came, want %s", r.TypeUrl, kind)
		}
		return r
	}
	send(resource.ClusterType, nil)
	clusters := next(resource.ClusterType)
	if len(clusters.Resources) != 2 {
		t.Fatalf("%d clusters, want 2", len(clusters.Resources))
	}
	send(resource.ClusterType, clusters)
	send(resource.RouteType, nil, RouteTable)
	routes := next(resource.RouteType)
	send(resource.RouteType, routes, RouteTable)

	// another group: its clusters come, and its route not before they were taken
	canary := ready("b", "127.0.0.1:3", "127.0.0.1:4")
	canary.Group = "canary"
	more := topologyOf(ready("a", "127.0.0.1:1", "127.0.0.1:2"), canary)
	more.Routes = []Route{{Model: "m", Targets: []Target{{Group: "canary"}}}}
	if _, err := s.Set(more, nil); err != nil {
		t.Fatal(err)
	}
	clusters = next(resource.ClusterType)
	if len(clusters.Resources) != 4 {
		t.Fatalf("%d clusters, want 4", len(clusters.Resources))
	}
	send(resource.ClusterType, clusters)
	routes = next(resource.RouteType)
	if !strings.Contains(routes.String(), "canary") {
		t.Error("the route has no canary")
	}
	send(resource.RouteType, routes, RouteTable)

	if _, err := s.Set(topologyOf(ready("a", "127.0.0.1:1", "127.0.0.1:2")), nil); err != nil {
		t.Fatal(err)
	}
	routes = next(resource.RouteType) // first the route, then the cluster
	send(resource.RouteType, routes, RouteTable)
	if clusters = next(resource.ClusterType); len(clusters.Resources) != 2 {
		t.Fatalf("%d clusters, want 2", len(clusters.Resources))
	}

	// a refusal is counted, and not answered with the same again
	bad := &discoveryv3.DiscoveryRequest{TypeUrl: resource.ClusterType, ResponseNonce: clusters.Nonce,
		ErrorDetail: &status.Status{Code: 3, Message: "no"}}
	if err := stream.Send(bad); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one Envoy and one refusal", func() bool {
		envoys, rejected := s.Counts()
		return envoys == 1 && rejected == 1
	})
}

// TestDelta follows one Envoy over the delta protocol: what changed comes, no more.
func TestDelta(t *testing.T) {
	s, client := serve(t)
	if _, err := s.Set(topologyOf(ready("a", "127.0.0.1:1", "127.0.0.1:2")), nil); err != nil {
		t.Fatal(err)
	}
	stream, err := client.DeltaAggregatedResources(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	next := func() *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
		return r
	}
	send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "test"}, TypeUrl: resource.ClusterType})
	r := next()
	if len(r.Resources) != 2 {
		t.Fatalf("%d clusters, want 2", len(r.Resources))
	}
	c := &clusterv3.Cluster{}
	if err := r.Resources[0].Resource.UnmarshalTo(c); err != nil {
		t.Fatal(err)
	}
	endpoints := c.EdsClusterConfig.ServiceName
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{endpoints}})
	if r := next(); len(r.Resources) != 1 {
		t.Fatalf("%d endpoints, want 1", len(r.Resources))
	}
	drained := ready("a", "127.0.0.1:1", "127.0.0.1:2")
	drained.Draining = true
	if _, err := s.Set(topologyOf(drained), nil); err != nil {
		t.Fatal(err)
	}
	if r := next(); len(r.Resources) != 1 || r.TypeUrl != resource.EndpointType || r.Resources[0].Name != endpoints {
		t.Fatalf("%d of %s, want the endpoints that changed", len(r.Resources), r.TypeUrl)
	}
	other := ready("b", "127.0.0.1:3", "127.0.0.1:4")
	other.Group = "canary"
	withRoute := topologyOf(drained, other)
	withRoute.Routes = []Route{{Model: "m", Targets: []Target{{Group: "canary"}}}}
	if _, err := s.Set(withRoute, nil); err != nil {
		t.Fatal(err)
	}
	if r := next(); len(r.Resources) != 2 || len(r.RemovedResources) != 0 {
		t.Fatalf("%d clusters and %d removed, want the two new ones", len(r.Resources), len(r.RemovedResources))
	}
	if _, err := s.Set(topologyOf(drained), nil); err != nil {
		t.Fatal(err)
	}
	if r := next(); len(r.RemovedResources) != 2 {
		t.Fatalf("%v removed, want two clusters", r.RemovedResources)
	}
}

// TestBadTopology leaves the old one.
func TestBadTopology(t *testing.T) {
	s, _ := serve(t)
	if _, err := s.Set(topologyOf(Gateway{Name: "a", HTTP: "name:1"}), nil); err == nil {
		t.Error("a gateway's name was taken")
	}
	if _, err := s.Set(topologyOf(Gateway{Name: "a"}), nil); err == nil {
		t.Error("a gateway without ports was taken")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}
