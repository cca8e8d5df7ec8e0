// Package bootstrap writes what an Envoy must be started with: who it is, where the
// control plane is, and nothing about routes. It does no I/O.
package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-serve/sluice/xds"
)

// Config is what differs between two Envoys.
type Config struct {
	Node, Cluster, Zone string   // who it is; Zone "": none
	ControlPlanes       []string // host:port or unix:path, tried in turn; not empty
	Delta               bool     // the delta protocol in place of the state of the world
	Admin               string   // ip:port of the admin interface
	MaxConnections      int64    // of callers; more are closed
	TLS                 *TLS     // to the control plane; nil: plain text
}

// TLS are PEM files as Envoy finds them; it reads them again when they change.
type TLS struct {
	CA, Cert, Key string // Cert and Key "": no certificate is shown
	Name          string // DNS name in the control plane's certificate
}

// Default is the Envoy of deploy/envoy/bootstrap.yaml: beside a control plane on the
// loopback address.
func Default() Config {
	return Config{Node: "envoy", Cluster: "sluice", ControlPlanes: []string{"127.0.0.1:18000"}, Admin: "127.0.0.1:9901", MaxConnections: 50_000}
}

// YAML is the file for Envoy's -c.
func YAML(c Config) ([]byte, error) {
	b, err := build(&c)
	if err != nil {
		return nil, err
	}
	if err := b.ValidateAll(); err != nil {
		return nil, err
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(tree), e.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func build(c *Config) (*bootstrapv3.Bootstrap, error) {
	admin, err := netip.ParseAddrPort(c.Admin)
	if err != nil {
		return nil, fmt.Errorf("the admin address %q is not ip:port", c.Admin)
	}
	if len(c.ControlPlanes) == 0 {
		return nil, errors.New("there is no address of a control plane")
	}
	cluster, err := controlCluster(c)
	if err != nil {
		return nil, err
	}
	limit, err := anypb.New(&connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: c.MaxConnections})
	if err != nil {
		return nil, err
	}
	api := corev3.ApiConfigSource_GRPC
	if c.Delta {
		api = corev3.ApiConfigSource_DELTA_GRPC
	}
	ads := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	b := &bootstrapv3.Bootstrap{
		Node:  &corev3.Node{Id: c.Node, Cluster: c.Cluster},
		Admin: &bootstrapv3.Admin{Address: socket(admin.Addr().String(), uint32(admin.Port()))},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{ApiType: api, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: xds.ControlCluster}}}}},
			CdsConfig: ads, LdsConfig: ads,
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{cluster}},
		OverloadManager: &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name:       "envoy.resource_monitors.global_downstream_max_connections",
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: limit}}}},
	}
	if c.Zone != "" {
		b.Node.Locality = &corev3.Locality{Zone: c.Zone}
	}
	return b, nil
}

// controlCluster is the cluster that Envoy needs before it knows any other.
func controlCluster(c *Config) (*clusterv3.Cluster, error) {
	options, err := anypb.New(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
				ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: durationpb.New(15 * time.Second), Timeout: durationpb.New(5 * time.Second)}}}}}})
	if err != nil {
		return nil, err
	}
	out := &clusterv3.Cluster{Name: xds.ControlCluster, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}}
	endpoints := &endpointv3.LocalityLbEndpoints{}
	for _, at := range c.ControlPlanes {
		address, named, err := addressOf(at)
		if err != nil {
			return nil, fmt.Errorf("the control plane's address %q: %w", at, err)
		}
		if named {
			out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		}
		endpoints.LbEndpoints = append(endpoints.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address}}})
	}
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: out.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{endpoints}}
	if c.TLS != nil {
		out.TransportSocket, err = c.TLS.socket()
	}
	return out, err
}

func (t *TLS) socket() (*corev3.TransportSocket, error) {
	file := func(name string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
	}
	validation := &tlsv3.CertificateValidationContext{TrustedCa: file(t.CA)}
	if t.Name != "" {
		validation.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_DNS,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: t.Name}}}}
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2"},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}}
	if t.Cert != "" {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(t.Cert), PrivateKey: file(t.Key)}}
	}
	config, err := anypb.New(proto.Message(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.Name,
		AllowRenegotiation: false, MaxSessionKeys: wrapperspb.UInt32(1)}))
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}, err
}

func addressOf(text string) (at *corev3.Address, named bool, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}, false, nil
	}
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return nil, false, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, false, err
	}
	_, err = netip.ParseAddr(host)
	return socket(host, uint32(port)), err != nil, nil
}

func socket(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}
}
