package xds

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	leastv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	ringv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	roundv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// loadPeriod is how often gateways report their load to Envoy, and Envoy weighs them.
const loadPeriod = 500 * time.Millisecond

// DestinationHeader is what an endpoint picker sets to ip:port of the gateway it chose;
// several, separated by commas, are tried in their order.
// Source: the endpoint picker protocol of the Gateway API's inference extension.
const DestinationHeader = "x-gateway-destination-endpoint"

// PickHeader tells the gateway what an endpoint picker chose, and why.
const PickHeader = "x-sluice-pick"

// The namespaces of dynamic metadata that an endpoint picker may write: what load
// balancing policies read, and why it chose so, for the access log.
const (
	balanceNamespace = "envoy.lb"
	pickerNamespace  = "sluice.picker"
)

// balance is how a cluster's gateways share calls. With a picker its choice comes first,
// and the policy is what is left when it made none.
func (b *builder) balance(protocol string) *clusterv3.LoadBalancingPolicy {
	policy := b.policy(protocol)
	if b.t.Services.Picker == nil {
		return policy
	}
	return b.policies("envoy.load_balancing_policies.override_host", &overridev3.OverrideHost{
		// Callers can write headers, but no metadata.
		OverrideHostSources: []*overridev3.OverrideHost_OverrideHostSource{{Metadata: &metadatav3.MetadataKey{Key: balanceNamespace,
			Path: []*metadatav3.MetadataKey_PathSegment{{Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: DestinationHeader}}}}}},
		FallbackPolicy: policy})
}

func (b *builder) policy(protocol string) *clusterv3.LoadBalancingPolicy {
	local := &commonv3.LocalityLbConfig{LocalityConfigSpecifier: &commonv3.LocalityLbConfig_ZoneAwareLbConfig_{
		ZoneAwareLbConfig: &commonv3.LocalityLbConfig_ZoneAwareLbConfig{}}}
	switch b.up.Balance {
	case BalanceRoundRobin:
		return b.policies("envoy.load_balancing_policies.round_robin", &roundv3.RoundRobin{LocalityLbConfig: local})
	case BalanceLoad:
		return b.policies("envoy.load_balancing_policies.client_side_weighted_round_robin", &loadv3.ClientSideWeightedRoundRobin{
			// The gRPC port reports out of band; answers of the HTTP port name the load when
			// the gateways are started with --load-report.
			EnableOobLoadReport: wrapperspb.Bool(protocol == protocolGRPC), OobReportingPeriod: durationpb.New(loadPeriod),
			BlackoutPeriod: durationpb.New(time.Second), WeightExpirationPeriod: durationpb.New(30 * time.Second),
			WeightUpdatePeriod: durationpb.New(loadPeriod)})
	case BalanceHash:
		return b.policies("envoy.load_balancing_policies.ring_hash", &ringv3.RingHash{
			MinimumRingSize: wrapperspb.UInt64(1024)})
	}
	return b.policies("envoy.load_balancing_policies.least_request", &leastv3.LeastRequest{LocalityLbConfig: local})
}

func (b *builder) policies(name string, config proto.Message) *clusterv3.LoadBalancingPolicy {
	return &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: name, TypedConfig: b.packed(config)}}}}
}
