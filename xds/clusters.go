package xds

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matchv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The two protocols of a gateway, as cluster names begin.
const (
	protocolHTTP = "http"
	protocolGRPC = "grpc"
)

// httpOptions is the name under which a cluster's HTTP options stand.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// ControlCluster is the cluster of the control plane itself, which the bootstrap has.
const ControlCluster = "sluice_xds"

// clusterOf is the name of the cluster that has the gateways of a group with the model
// ready, which is the group's own as long as all its live gateways have; the cluster is
// made when it is not there yet. Model "" asks for the group's.
func (b *builder) clusterOf(protocol, group, model, version string) string {
	name := protocol + "/" + group
	var all, have []*Gateway
	for i := range b.t.Gateways {
		g := &b.t.Gateways[i]
		if g.group() != group || g.address(protocol) == "" {
			continue
		}
		all = append(all, g)
		if g.has(model, version) {
			have = append(have, g)
		}
	}
	lacks := func(g *Gateway) bool { return g.live() && !g.has(model, version) }
	if model != "" && slices.ContainsFunc(all, lacks) {
		name += "/" + model
		if version != "" {
			name += "/" + version
		}
		all = have
	}
	if _, ok := b.out.Clusters[name]; !ok {
		b.out.Clusters[name] = b.gatewayCluster(name, protocol)
		b.out.Endpoints[name] = b.endpoints(name, protocol, all)
	}
	return name
}

func (g *Gateway) address(protocol string) string {
	if protocol == protocolGRPC {
		return g.GRPC
	}
	return g.HTTP
}

// gatewayCluster is a cluster of gateways; its endpoints come separately.
func (b *builder) gatewayCluster(name, protocol string) *clusterv3.Cluster {
	u := &b.up
	return &clusterv3.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:              &clusterv3.Cluster_EdsClusterConfig{EdsConfig: fromADS()},
		ConnectTimeout:                durationpb.New(u.ConnectTimeout),
		LoadBalancingPolicy:           b.balance(protocol),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(uint32(u.BufferBytes)),
		TypedExtensionProtocolOptions: b.httpOptions(protocol == protocolGRPC || u.HTTP2),
		TransportSocket:               b.upstreamTLS(protocol == protocolGRPC || u.HTTP2),
		HealthChecks:                  []*corev3.HealthCheck{b.healthCheck()},
		// A gateway that is gone from the endpoints leaves at once, healthy or not.
		IgnoreHealthOnHostRemoval: true,
		OutlierDetection:          b.outliers(),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections:     wrapperspb.UInt32(uint32(u.MaxConnections)),
			MaxPendingRequests: wrapperspb.UInt32(uint32(u.MaxPending)),
			MaxRequests:        wrapperspb.UInt32(uint32(u.MaxRequests)),
			MaxRetries:         wrapperspb.UInt32(u.retriesAtOnce()),
			TrackRemaining:     true,
		}}},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
			// Calls never go to gateways that said they are not ready.
			HealthyPanicThreshold: &typev3.Percent{},
			// A gateway that is found unhealthy is left out soon.
			UpdateMergeWindow: durationpb.New(100 * time.Millisecond),
		},
	}
}

// retriesAtOnce is the breaker of repetitions in progress. It is a count, and not a share of
// the calls in progress: when a gateway is killed, all calls that would have gone there are
// refused a connection at one time, and while they wait to be repeated they are not in
// progress, so that a share of those is next to nothing just then. Each repetition is of a
// call that was not begun, and there are Retries of a call at most (see builder.retries).
func (u *Upstream) retriesAtOnce() uint32 {
	return uint32(math.Ceil(u.RetryBudget / 100 * float64(u.MaxRequests)))
}

// outliers leave out a gateway that fails in ways that are its own: connections that
// fail or break, and the answers of faulty.
func (b *builder) outliers() *clusterv3.OutlierDetection {
	u := &b.up
	row, always, never := wrapperspb.UInt32(uint32(u.ErrorsInRow)), wrapperspb.UInt32(100), wrapperspb.UInt32(0)
	return &clusterv3.OutlierDetection{
		Consecutive_5Xx: row, EnforcingConsecutive_5Xx: always,
		ConsecutiveGatewayFailure: row, EnforcingConsecutiveGatewayFailure: never,
		SplitExternalLocalOriginErrors: true,
		ConsecutiveLocalOriginFailure:  row, EnforcingConsecutiveLocalOriginFailure: always,
		EnforcingSuccessRate: never, EnforcingLocalOriginSuccessRate: never,
		Interval:           durationpb.New(max(u.HealthInterval, 100*time.Millisecond)),
		BaseEjectionTime:   durationpb.New(u.Ejection),
		MaxEjectionTime:    durationpb.New(10 * u.Ejection),
		MaxEjectionPercent: wrapperspb.UInt32(50),
		// That it is ready does not make what it answered any better.
		SuccessfulActiveHealthCheckUnejectHost: wrapperspb.Bool(false),
	}
}

// faulty are the answers that count against a gateway: unavailable without a reason. A
// refusal with a reason (a queue is full) says nothing against it, nor does a model
// that fails.
func faulty() *matchv3.MatchPredicate {
	noReason := &routev3.HeaderMatcher{Name: ReasonHeader, InvertMatch: true,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	with := func(m *routev3.HeaderMatcher) *matchv3.MatchPredicate {
		return &matchv3.MatchPredicate{Rule: &matchv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &matchv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{m, noReason}}}}
	}
	status := &routev3.HeaderMatcher{Name: ":status", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "50[234]"}}}}}
	return &matchv3.MatchPredicate{Rule: &matchv3.MatchPredicate_OrMatch{OrMatch: &matchv3.MatchPredicate_MatchSet{
		Rules: []*matchv3.MatchPredicate{with(status), with(exactly("grpc-status", "14"))}}}}
}

// healthCheck asks the HTTP port for readiness, for both protocols.
func (b *builder) healthCheck() *corev3.HealthCheck {
	every := durationpb.New(b.up.HealthInterval)
	codec, alpn := typev3.CodecClientType_HTTP1, "http/1.1"
	if b.up.HTTP2 {
		codec, alpn = typev3.CodecClientType_HTTP2, "h2"
	}
	return &corev3.HealthCheck{
		// gRPC's cluster asks the HTTP port too, whose protocol it is then
		TlsOptions: &corev3.HealthCheck_TlsOptions{AlpnProtocols: []string{alpn}},
		Timeout:    durationpb.New(max(b.up.HealthInterval, time.Second)), Interval: every,
		NoTrafficInterval: every, UnhealthyInterval: every, UnhealthyEdgeInterval: every, HealthyEdgeInterval: every,
		NoTrafficHealthyInterval: every,
		UnhealthyThreshold:       wrapperspb.UInt32(2), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Path: "/v2/health/ready", Host: "sluice", CodecClientType: codec,
			RequestHeadersToAdd: []*corev3.HeaderValueOption{b.set(DegradedHeader, "accept")}}},
	}
}

// httpOptions are a cluster's: HTTP/2 with windows that fit tensors, or HTTP/1.1.
func (b *builder) httpOptions(http2 bool) map[string]*anypb.Any {
	o := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(time.Minute)},
		OutlierDetection: &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: faulty()}}
	explicit := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{}
	if http2 {
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: b.http2()}
	} else {
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}
	}
	o.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit}
	return map[string]*anypb.Any{httpOptions: b.packed(o)}
}

func (b *builder) http2() *corev3.Http2ProtocolOptions {
	window := uint32(min(max(b.up.BufferBytes, 65535), 1<<30))
	return &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams:        wrapperspb.UInt32(uint32(b.up.MaxStreams)),
		InitialStreamWindowSize:     wrapperspb.UInt32(window),
		InitialConnectionWindowSize: wrapperspb.UInt32(min(4*window, 1<<30)),
		ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: durationpb.New(30 * time.Second),
			Timeout: durationpb.New(10 * time.Second)},
	}
}

// endpoints are the gateways of a cluster, by zone: Envoy's own zone first where calls
// prefer it.
func (b *builder) endpoints(name, protocol string, gateways []*Gateway) *endpointv3.ClusterLoadAssignment {
	zones := map[string]*endpointv3.LocalityLbEndpoints{}
	out := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, g := range gateways {
		l := zones[g.Zone]
		if l == nil {
			l = &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: g.Zone}}
			if b.up.Zones == "prefer" && b.zone != "" && g.Zone != b.zone {
				l.Priority = 1
			}
			zones[g.Zone] = l
			out.Endpoints = append(out.Endpoints, l)
		}
		l.LbEndpoints = append(l.LbEndpoints, b.endpoint(g, protocol))
	}
	slices.SortFunc(out.Endpoints, func(a, b *endpointv3.LocalityLbEndpoints) int {
		return strings.Compare(a.GetLocality().GetZone(), b.GetLocality().GetZone())
	})
	if ps := out.Endpoints; len(ps) > 0 && !slices.ContainsFunc(ps, func(l *endpointv3.LocalityLbEndpoints) bool { return l.Priority == 0 }) {
		for _, l := range ps { // priorities begin at 0
			l.Priority = 0
		}
	}
	if !slices.ContainsFunc(out.Endpoints, func(l *endpointv3.LocalityLbEndpoints) bool { return l.Priority > 0 }) {
		// Else a third of the calls would go to degraded gateways where half of them are.
		out.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(oneIsEnough)}
	}
	return out
}

// oneIsEnough is an overprovisioning factor, in percent, by which one ready gateway of ten
// thousand takes all calls.
const oneIsEnough = 1_000_000

func (b *builder) endpoint(g *Gateway, protocol string) *endpointv3.LbEndpoint {
	status := corev3.HealthStatus_HEALTHY
	if g.Draining {
		status = corev3.HealthStatus_DRAINING
	} else if !g.Ready && g.Degraded {
		status = corev3.HealthStatus_DEGRADED
	} else if !g.Ready {
		status = corev3.HealthStatus_UNHEALTHY
	}
	e := &endpointv3.Endpoint{Address: b.address(g.address(protocol)), Hostname: g.Name}
	if protocol == protocolGRPC && g.HTTP != "" {
		e.HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{Address: b.address(g.HTTP)}
	} else if protocol == protocolGRPC {
		e.HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{DisableActiveHealthCheck: true}
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: e},
		HealthStatus:        status,
		LoadBalancingWeight: wrapperspb.UInt32(uint32(max(g.Weight, 1))),
	}
}

// address is host:port or unix:path as Envoy has it; the host is an IP address.
func (b *builder) address(text string) *corev3.Address {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		b.fail("%s is not the IP address and port of a gateway", text)
		return nil
	}
	return socketAddress(at.Addr().String(), int(at.Port()))
}

// unixPrefix stands before the path of a Unix socket.
const unixPrefix = "unix:"

func socketAddress(host string, port int) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}}}
}

// serviceCluster is a cluster of one address, host:port or unix:path, that speaks HTTP/2;
// names are looked up by Envoy.
func serviceCluster(name, address string) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
	var at *corev3.Address
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		at = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	} else {
		host, portText, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			return nil, err
		}
		at = socketAddress(host, int(port))
		if _, err := netip.ParseAddr(host); err != nil {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		}
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}}}}}}}
	return c, nil
}

// fromADS says that a resource comes over the stream that everything comes over.
func fromADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}
