package xds

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The clusters of services that are not the control plane itself.
const (
	authzCluster     = "authz"
	rateLimitCluster = "rate_limit"
	pickerCluster    = "picker"
)

// RateLimitDomain is the domain in which Envoy asks about limits.
const RateLimitDomain = "sluice"

// services makes the clusters of the services that have an address.
func (b *builder) services() {
	s := &b.t.Services
	for name, address := range map[string]string{authzCluster: s.Authz.address(), rateLimitCluster: s.RateLimit.address(),
		pickerCluster: s.Picker.address(), collectorCluster: s.Collector.address()} {
		if address == "" {
			continue
		}
		c, err := serviceCluster(name, address)
		if err != nil {
			b.fail("the address of the %s service: %w", name, err)
			continue
		}
		c.TypedExtensionProtocolOptions = b.httpOptions(true)
		b.out.Clusters[name] = c
	}
}

func (s *Service) address() string {
	if s == nil {
		return ""
	}
	return s.Address
}

func (c *Collector) address() string {
	if c == nil {
		return ""
	}
	return c.Address
}

// grpc is how Envoy reaches s.
func (s *Service) grpc(cluster string) *corev3.GrpcService {
	if s.Address == "" {
		cluster = ControlCluster
	}
	return &corev3.GrpcService{Timeout: s.timeout(),
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}}}
}

func (s *Service) timeout() *durationpb.Duration {
	return durationpb.New(orDefault(s.Timeout, 200*time.Millisecond))
}

// filters are the HTTP filters in the order of a call: who is it, may it come now,
// where does it go.
func (b *builder) filters() []*managerv3.HttpFilter {
	var out []*managerv3.HttpFilter
	add := func(name string, config proto.Message) {
		out = append(out, &managerv3.HttpFilter{Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: b.packed(config)}})
	}
	s := &b.t.Services
	if s.Authz != nil {
		add(AuthzFilter, &authzv3.ExtAuthz{
			Services:               &authzv3.ExtAuthz_GrpcService{GrpcService: s.Authz.grpc(authzCluster)},
			TransportApiVersion:    corev3.ApiVersion_V3,
			IncludePeerCertificate: true,
			StatusOnError:          &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		})
	}
	if s.RateLimit != nil {
		add("envoy.filters.http.ratelimit", &ratelimitv3.RateLimit{
			Domain: RateLimitDomain, Timeout: s.RateLimit.timeout(), FailureModeDeny: s.RateLimit.Closed,
			StatusOnError:           &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
			EnableXRatelimitHeaders: ratelimitv3.RateLimit_DRAFT_VERSION_03,
			RateLimitService: &ratelimitconfigv3.RateLimitServiceConfig{GrpcService: s.RateLimit.grpc(rateLimitCluster),
				TransportApiVersion: corev3.ApiVersion_V3},
		})
	}
	if s.Picker != nil {
		add("envoy.filters.http.ext_proc", &procv3.ExternalProcessor{
			GrpcService: s.Picker.grpc(pickerCluster), FailureModeAllow: !s.Picker.Closed, MessageTimeout: s.Picker.timeout(),
			ProcessingMode: &procv3.ProcessingMode{
				RequestHeaderMode:   procv3.ProcessingMode_SEND,
				RequestBodyMode:     procv3.ProcessingMode_NONE,
				ResponseHeaderMode:  procv3.ProcessingMode_SKIP,
				ResponseTrailerMode: procv3.ProcessingMode_SKIP,
			},
			StatusOnError:     &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable}, // where it is Closed
			AllowModeOverride: true,
			// A body that the picker looked at is sent on as it came.
			AllowContentLengthHeader: true,
			MetadataOptions:          s.pickerMetadata(),
		})
	}
	add("envoy.filters.http.router", &routerv3.Router{RespectExpectedRqTimeout: true})
	return out
}

// AuthzFilter is the authorization filter's name, and the namespace of what its service finds
// out of callers: the strings tenant and principal. Callers can't write there.
const AuthzFilter = "envoy.filters.http.ext_authz"

// pickerMetadata is what the picker may set, and what it is told of a call: its caller, since
// sequences of several callers may have the same ID.
func (s *Services) pickerMetadata() *procv3.MetadataOptions {
	o := &procv3.MetadataOptions{ReceivingNamespaces: &procv3.MetadataOptions_MetadataNamespaces{
		Untyped: []string{balanceNamespace, pickerNamespace}}}
	if s.Authz != nil {
		o.ForwardingNamespaces = &procv3.MetadataOptions_MetadataNamespaces{Untyped: []string{AuthzFilter}}
	}
	return o
}

// rateLimits are the descriptors that Envoy sends to the rate limit service: the
// caller, and what it calls.
func (b *builder) rateLimits() []*routev3.RateLimit {
	if b.t.Services.RateLimit == nil {
		return nil
	}
	header := func(name, key string) *routev3.RateLimit_Action {
		return &routev3.RateLimit_Action{ActionSpecifier: &routev3.RateLimit_Action_RequestHeaders_{
			RequestHeaders: &routev3.RateLimit_Action_RequestHeaders{HeaderName: name, DescriptorKey: key, SkipIfAbsent: true}}}
	}
	return []*routev3.RateLimit{{Actions: []*routev3.RateLimit_Action{
		header(PrincipalHeader, "principal"), header(ModelHeader, "model"), header(":method", "method"), header(":path", "path"),
		{ActionSpecifier: &routev3.RateLimit_Action_RemoteAddress_{RemoteAddress: &routev3.RateLimit_Action_RemoteAddress{}}},
	}}}
}
