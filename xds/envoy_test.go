package xds

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// envoyBinary is where `make envoy` puts it.
const envoyBinary = "../.cache/envoy/envoy"

// TestEnvoyTakesExamples gives each example to a real Envoy as a static configuration.
// Its own checks go further than those of the protos: extensions that it must know,
// fields that exclude each other, clusters that routes name.
func TestEnvoyTakesExamples(t *testing.T) {
	if _, err := os.Stat(envoyBinary); errors.Is(err, fs.ErrNotExist) {
		t.Skip("no Envoy: make envoy")
	}
	for name, e := range examples() {
		t.Run(name, func(t *testing.T) {
			e.secrets = realSecrets(t, e.secrets)
			r, err := Build(e.topology, e.zone, e.secrets)
			if err != nil {
				t.Fatal(err)
			}
			data, err := protojson.Marshal(static(t, r))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "envoy.json")
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, envoyBinary, "--mode", "validate", "-c", file, "-l", "error", "--disable-hot-restart", "--concurrency", "1").CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// static is r without a control plane: routes in listeners, endpoints in clusters, and
// secrets by name.
func static(t *testing.T, r *Resources) *bootstrapv3.Bootstrap {
	t.Helper()
	s := &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{Name: ControlCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}}}
	for _, name := range slices.Sorted(maps.Keys(r.Clusters)) {
		c := proto.Clone(r.Clusters[name].(*clusterv3.Cluster)).(*clusterv3.Cluster)
		if c.EdsClusterConfig != nil {
			c.EdsClusterConfig, c.ClusterDiscoveryType = nil, &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			c.LoadAssignment = r.Endpoints[name].(*endpointv3.ClusterLoadAssignment)
		}
		if c.TransportSocket != nil {
			c.TransportSocket.GetTypedConfig().Value = localSecrets(t, c.TransportSocket, &tlsv3.UpstreamTlsContext{})
		}
		s.Clusters = append(s.Clusters, c)
	}
	for _, secret := range r.Secrets {
		s.Secrets = append(s.Secrets, secret.(*tlsv3.Secret))
	}
	for _, l := range r.Listeners {
		l := proto.Clone(l.(*listenerv3.Listener)).(*listenerv3.Listener)
		for _, chain := range l.FilterChains {
			m := &managerv3.HttpConnectionManager{}
			if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(m); err != nil {
				t.Fatal(err)
			}
			m.RouteSpecifier = &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: r.Routes[RouteTable].(*routev3.RouteConfiguration)}
			packed, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			chain.Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
			if chain.TransportSocket != nil {
				chain.TransportSocket.GetTypedConfig().Value = localSecrets(t, chain.TransportSocket, &tlsv3.DownstreamTlsContext{})
			}
		}
		s.Listeners = append(s.Listeners, l)
	}
	return &bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "test", Cluster: "test"}, StaticResources: s}
}

// localSecrets is the socket's TLS context with secrets of the bootstrap itself.
func localSecrets(t *testing.T, s *corev3.TransportSocket, into interface {
	proto.Message
	GetCommonTlsContext() *tlsv3.CommonTlsContext
}) []byte {
	t.Helper()
	if err := s.GetTypedConfig().UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
	for _, c := range into.GetCommonTlsContext().TlsCertificateSdsSecretConfigs {
		c.SdsConfig = nil
	}
	if v := into.GetCommonTlsContext().GetValidationContextSdsSecretConfig(); v != nil {
		v.SdsConfig = nil
	}
	data, err := proto.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
