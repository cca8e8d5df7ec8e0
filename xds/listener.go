package xds

import (
	"net/netip"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamlogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-serve/sluice/infer"
)

// DefaultPort is where Envoy listens when the topology says nothing.
const DefaultPort = 10000

// DefaultListener is the listener of a topology that has none.
func DefaultListener() Listener {
	return Listener{Name: "mesh", Address: "0.0.0.0", Port: DefaultPort}
}

func (b *builder) listeners() {
	ls := b.t.Listeners
	if len(ls) == 0 {
		ls = []Listener{DefaultListener()}
	}
	for i := range ls {
		l := ls[i]
		l.Name, l.Address = orDefault(l.Name, "mesh"), orDefault(l.Address, "0.0.0.0")
		b.out.Listeners[l.Name] = b.listener(&l)
	}
}

func (b *builder) listener(l *Listener) *listenerv3.Listener {
	at := socketAddress(l.Address, l.Port)
	if l.Unix != "" {
		at = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: l.Unix}}}
	}
	return &listenerv3.Listener{
		Name: l.Name, Address: at,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(uint32(b.up.BufferBytes)),
		FilterChains: []*listenerv3.FilterChain{{
			TransportSocket: b.downstreamTLS(l),
			Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.packed(b.manager(l))}}},
		}},
	}
}

func (b *builder) manager(l *Listener) *managerv3.HttpConnectionManager {
	m := &managerv3.HttpConnectionManager{
		StatPrefix: l.Name,
		CodecType:  managerv3.HttpConnectionManager_AUTO,
		RouteSpecifier: &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{
			ConfigSource: fromADS(), RouteConfigName: RouteTable}},
		HttpFilters:                   b.filters(),
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{b.strip()},
		// The caller's address is what this Envoy sees, and x-forwarded-for says so to
		// the gateway, for which nobody behind Envoy is local.
		UseRemoteAddress:             wrapperspb.Bool(true),
		InternalAddressConfig:        internal(l),
		XffNumTrustedHops:            uint32(l.TrustedHops),
		GenerateRequestId:            wrapperspb.Bool(true),
		PreserveExternalRequestId:    true,
		AlwaysSetRequestIdInResponse: true,
		Http2ProtocolOptions:         b.http2(),
		RequestHeadersTimeout:        durationpb.New(10 * time.Second),
		StreamIdleTimeout:            durationpb.New(b.up.IdleTimeout),
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			IdleTimeout:                  durationpb.New(b.up.IdleTimeout),
			HeadersWithUnderscoresAction: corev3.HttpProtocolOptions_ALLOW,
		},
		NormalizePath:                wrapperspb.Bool(true),
		MergeSlashes:                 true,
		PathWithEscapedSlashesAction: managerv3.HttpConnectionManager_KEEP_UNCHANGED,
		DelayedCloseTimeout:          durationpb.New(time.Second),
		AccessLog:                    b.accessLog(l),
		Tracing:                      b.tracing(),
		ServerHeaderTransformation:   managerv3.HttpConnectionManager_PASS_THROUGH,
	}
	if l.TLS != nil && l.TLS.ClientCA != "" {
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE_SET
		m.SetCurrentClientCertDetails = &managerv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: wrapperspb.Bool(true), Uri: true, Dns: true}
	}
	return m
}

// strip takes from each call, before anything looks at it, what only the mesh may say of
// one: who calls, with what proof, what answers, where the picker sent it, and what
// it said of its sequence. Limits and
// logs by the caller's name hold then also where no authorization service sets it.
func (b *builder) strip() *corev3.TypedExtensionConfig {
	m := &earlyv3.HeaderMutation{}
	for _, name := range []string{PrincipalHeader, ProofHeader, TargetHeader, DestinationHeader, PickHeader, infer.PlacementHeader} {
		m.Mutations = append(m.Mutations, &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Remove{Remove: name}})
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: b.packed(m)}
}

// internal are the callers whose x-envoy-upstream-rq-timeout-ms counts.
func internal(l *Listener) *managerv3.HttpConnectionManager_InternalAddressConfig {
	ranges := l.Internal
	if ranges == nil {
		ranges = []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}
	}
	c := &managerv3.HttpConnectionManager_InternalAddressConfig{UnixSockets: true}
	for _, text := range ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue // Validate has said so
		}
		c.CidrRanges = append(c.CidrRanges, &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))})
	}
	return c
}

// stdout is Envoy's standard output as a file's name.
const stdout = "/dev/stdout"

// accessLog is one line of JSON for a call. "flags" and "details" are Envoy's reasons,
// "reason" is the gateway's.
func (b *builder) accessLog(l *Listener) []*accesslogv3.AccessLog {
	if l.AccessLog == "none" {
		return nil
	}
	fields := map[string]*structpb.Value{}
	for name, format := range map[string]string{
		"time": "%START_TIME%", "protocol": "%PROTOCOL%", "method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
		"authority": "%REQ(:AUTHORITY)%", "status": "%RESPONSE_CODE%", "grpc_status": "%GRPC_STATUS_NUMBER%",
		"flags": "%RESPONSE_FLAGS%", "details": "%RESPONSE_CODE_DETAILS%", "reason": "%RESP(X-SLUICE-REASON)%",
		"reason_trailer": "%TRAILER(X-SLUICE-REASON)%", "failure": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
		"route": "%ROUTE_NAME%", "cluster": "%UPSTREAM_CLUSTER%", "gateway": "%UPSTREAM_HOST%", "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
		"request_id": "%REQ(X-REQUEST-ID)%", "trace_id": "%TRACE_ID%", "principal": "%REQ(X-SLUICE-PRINCIPAL)%",
		"model": "%REQ(X-SLUICE-MODEL)%", "client": "%DOWNSTREAM_REMOTE_ADDRESS%", "peer": "%DOWNSTREAM_PEER_URI_SAN%",
		"received": "%BYTES_RECEIVED%", "sent": "%BYTES_SENT%", "duration_ms": "%DURATION%",
		"first_byte_ms": "%RESPONSE_DURATION%", "request_ms": "%REQUEST_DURATION%",
	} {
		fields[name] = structpb.NewStringValue(format)
	}
	if b.t.Services.Picker != nil {
		fields["picked"] = structpb.NewStringValue("%DYNAMIC_METADATA(" + pickerNamespace + ":gateway)%")
		fields["picked_why"] = structpb.NewStringValue("%DYNAMIC_METADATA(" + pickerNamespace + ":why)%")
	}
	lines := &corev3.SubstitutionFormatString{
		OmitEmptyValues: true,
		Format:          &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}}}
	name, logger := "envoy.access_loggers.file", b.packed(&filelogv3.FileAccessLog{
		Path: l.AccessLog, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: lines}})
	if l.AccessLog == "" || l.AccessLog == stdout { // which Envoy may not be allowed to open as a file
		name, logger = "envoy.access_loggers.stdout", b.packed(&streamlogv3.StdoutAccessLog{
			AccessLogFormat: &streamlogv3.StdoutAccessLog_LogFormat{LogFormat: lines}})
	}
	return []*accesslogv3.AccessLog{{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: logger}}}
}

// collectorCluster is where spans go.
const collectorCluster = "collector"

// tracing makes Envoy begin or continue a trace. A caller's sampled flag counts; the
// percentage is for calls without one.
func (b *builder) tracing() *managerv3.HttpConnectionManager_Tracing {
	c := b.t.Services.Collector
	if c == nil {
		return nil
	}
	percent := 100.0
	if c.Percent != nil {
		percent = *c.Percent
	}
	config := &tracev3.OpenTelemetryConfig{ServiceName: orDefault(c.Service, "envoy"),
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: collectorCluster}},
			Timeout: durationpb.New(time.Second)}}
	return &managerv3.HttpConnectionManager_Tracing{
		RandomSampling:    &typev3.Percent{Value: percent},
		OverallSampling:   &typev3.Percent{Value: 100},
		SpawnUpstreamSpan: wrapperspb.Bool(true),
		Provider: &tracev3.Tracing_Http{Name: "envoy.tracers.opentelemetry",
			ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: b.packed(config)}},
	}
}
