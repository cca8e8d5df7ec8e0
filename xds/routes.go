package xds

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-serve/sluice/infer"
)

// RouteTable is the name of the one route configuration.
const RouteTable = "mesh"

// million is the denominator of all shares.
const million = 1_000_000

// call is what a route of Envoy's is for.
type call struct {
	protocol       string
	model, version string // as the caller says; "" : any
	group          string
	target         Target // what answers; Model "": as the caller says
	below          uint32 // this route takes random numbers under it, of a million; 0: all
	mirror         []Mirror
	timeout        time.Duration
	stateful       bool
	alike          bool     // what the caller says is what answers
	but            []string // gRPC: it names some model in ModelHeader, but none of these
}

// routes makes the route configuration: the routes of the topology, the models that are
// not on all gateways, and everything else, each for streams first, which are never
// repeated and have no bound.
func (b *builder) routes() {
	host := &routev3.VirtualHost{
		Name: RouteTable, Domains: []string{"*"},
		RequestHeadersToRemove:        notCallers(),
		IncludeAttemptCountInResponse: true,
		RequestBodyBufferLimit:        wrapperspb.UInt64(uint64(b.up.BufferBytes)),
		RateLimits:                    b.rateLimits(),
	}
	if b.t.Services.Picker != nil {
		// A call of which the picker said nothing, since it is away or slow, says so: no gateway
		// takes it for a sequence's.
		host.RequestHeadersToAdd = append(host.RequestHeadersToAdd, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: infer.PlacementHeader, Value: infer.Unplaced},
			AppendAction: corev3.HeaderValueOption_ADD_IF_ABSENT})
	}
	for _, c := range b.calls() {
		for _, stream := range []bool{true, false} {
			if !stream || c.protocol == protocolGRPC {
				host.Routes = append(host.Routes, b.route(c, stream))
			}
		}
	}
	b.out.Routes[RouteTable] = &routev3.RouteConfiguration{Name: RouteTable, VirtualHosts: []*routev3.VirtualHost{host},
		ValidateClusters: wrapperspb.Bool(false), MostSpecificHeaderMutationsWins: true}
}

// notCallers are the headers that callers may not set: what answers, and what is
// repeated how often, which the routes alone decide.
func notCallers() []string {
	return []string{TargetHeader, DegradedHeader, "x-envoy-retry-on", "x-envoy-retry-grpc-on", "x-envoy-max-retries", "x-envoy-retriable-header-names",
		"x-envoy-retriable-status-codes", "x-envoy-hedge-on-per-try-timeout", "x-envoy-upstream-alt-stat-name"}
}

// calls lists what routes are made, the first match counting.
func (b *builder) calls() []call {
	var out []call
	said := map[[2]string]bool{}
	for _, r := range b.sorted() {
		said[[2]string{r.Model, r.Version}] = true
		out = append(out, b.targets(r)...)
	}
	for _, m := range b.partial() {
		if said[m] || said[[2]string{m[0], ""}] {
			continue
		}
		for _, p := range []string{protocolHTTP, protocolGRPC} {
			out = append(out, call{protocol: p, model: m[0], version: m[1], group: DefaultGroup, stateful: b.stateful(m[0], m[1]), alike: true})
		}
	}
	if names := b.statefulNames(); len(names) > 0 {
		out = append(out, call{protocol: protocolGRPC, group: DefaultGroup, but: names, alike: true})
	}
	for _, p := range []string{protocolGRPC, protocolHTTP} {
		// Whose model the message alone names may belong to a sequence.
		out = append(out, call{protocol: p, group: DefaultGroup, stateful: p == protocolGRPC && b.stateful("", ""), alike: true})
	}
	return out
}

// sorted are the routes, those with a version before the one of the model without.
func (b *builder) sorted() []*Route {
	var rs []*Route
	for i := range b.t.Routes {
		rs = append(rs, &b.t.Routes[i])
	}
	slices.SortStableFunc(rs, func(a, b *Route) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(b.Version, a.Version))
	})
	return rs
}

// targets makes the routes of one Route, for both protocols: one for each target. Envoy
// asks each of them the same random number of a call, so their shares are cumulative.
func (b *builder) targets(r *Route) []call {
	var mirror []Mirror
	for i := range r.Mirror {
		mirror = append(mirror, r.mirror(i))
	}
	total := 0
	for i := range r.Targets {
		total += r.target(i).Weight
	}
	var out []call
	for _, p := range []string{protocolHTTP, protocolGRPC} {
		sum := 0
		for i := range r.Targets {
			t := r.target(i)
			if t.Weight == 0 {
				continue
			}
			sum += t.Weight
			c := call{protocol: p, model: r.Model, version: r.Version, group: t.Group, target: t, mirror: mirror, timeout: r.Timeout,
				stateful: r.Stateful || b.stateful(t.Model, t.Version), alike: t.Model == r.Model && t.Version == r.Version}
			if sum < total {
				c.below = uint32(math.Round(float64(sum) / float64(total) * million))
			}
			out = append(out, c)
		}
	}
	return out
}

// partial lists the models and versions that live gateways of the default group have
// and others have not, with what comes first being the more special.
func (b *builder) partial() [][2]string {
	seen := map[[2]string]bool{}
	for i := range b.t.Gateways {
		g := &b.t.Gateways[i]
		if g.group() != DefaultGroup || !g.live() {
			continue
		}
		for _, m := range g.Models {
			if m.Ready && plain(m.Name) && plain(m.Version) {
				seen[[2]string{m.Name, m.Version}], seen[[2]string{m.Name, ""}] = true, true
			}
		}
	}
	var out [][2]string
	for m := range seen {
		for i := range b.t.Gateways {
			if g := &b.t.Gateways[i]; g.group() == DefaultGroup && g.live() && !g.has(m[0], m[1]) {
				out = append(out, m)
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b [2]string) int { return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(b[1], a[1])) })
	return out
}

// stateful says that the model has sequences on some gateway; model "" asks for any.
func (b *builder) stateful(model, version string) bool {
	for i := range b.t.Gateways {
		for _, m := range b.t.Gateways[i].Models {
			if m.Stateful && (model == "" || m.Name == model && (version == "" || m.Version == version)) {
				return true
			}
		}
	}
	return false
}

// statefulNames are the models that have sequences on some gateway.
func (b *builder) statefulNames() []string {
	names := map[string]bool{}
	for i := range b.t.Gateways {
		for _, m := range b.t.Gateways[i].Models {
			if m.Stateful {
				names[m.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (b *builder) route(c call, stream bool) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: b.clusterOf(c.protocol, c.group, c.target.Model, c.target.Version)},
		// Without a bound of the route's own, the call's grpc-timeout and
		// x-envoy-upstream-rq-timeout-ms are all there is.
		Timeout:                     durationpb.New(c.timeout),
		ClusterNotFoundResponseCode: routev3.RouteAction_SERVICE_UNAVAILABLE,
		RequestMirrorPolicies:       b.mirrors(c),
		RetryPolicy:                 b.retries(c, stream),
	}
	if c.alike && c.model != "" {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: b.clusterOf(c.protocol, c.group, c.model, c.version)}
	}
	if b.up.Balance == BalanceHash || c.stateful {
		action.HashPolicy = []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: SequenceHeader}}}}
	}
	r := &routev3.Route{Name: c.name(stream), Match: b.match(c, stream), Action: &routev3.Route_Route{Route: action}}
	if c.protocol == protocolGRPC {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(c.timeout), GrpcTimeoutHeaderMax: durationpb.New(c.timeout)}
	}
	if stream {
		action.IdleTimeout = durationpb.New(0)
		action.Timeout = durationpb.New(0)
		action.MaxStreamDuration = nil
	}
	b.rename(c, r, action)
	return r
}

func (c *call) name(stream bool) string {
	parts := []string{c.protocol, c.group}
	if c.model != "" {
		parts = append(parts, c.model+"/"+c.version)
	}
	if len(c.but) > 0 {
		parts = append(parts, "named")
	}
	if !c.alike {
		parts = append(parts, c.target.Model+"/"+c.target.Version)
	}
	if stream {
		parts = append(parts, "stream")
	}
	return strings.Join(parts, " ")
}

// match is what a call must look like. A version counts for HTTP by the path, for gRPC
// by VersionHeader.
func (b *builder) match(c call, stream bool) *routev3.RouteMatch {
	m := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	if c.below != 0 {
		m.RuntimeFraction = &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
			Numerator: c.below, Denominator: typev3.FractionalPercent_MILLION}}
	}
	if c.protocol == protocolGRPC {
		m.Grpc = &routev3.RouteMatch_GrpcRouteMatchOptions{}
		if stream {
			m.PathSpecifier = &routev3.RouteMatch_Path{Path: "/inference.GRPCInferenceService/ModelStreamInfer"}
		}
		if c.model != "" {
			m.Headers = append(m.Headers, exactly(ModelHeader, c.model))
		}
		if c.version != "" {
			m.Headers = append(m.Headers, exactly(VersionHeader, c.version))
		}
		if len(c.but) > 0 {
			m.Headers = append(m.Headers, &routev3.HeaderMatcher{Name: ModelHeader,
				HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}})
		}
		for _, name := range c.but {
			other := exactly(ModelHeader, name)
			other.InvertMatch = true
			m.Headers = append(m.Headers, other)
		}
		return m
	}
	if c.model == "" {
		return m
	}
	path := "/v2/models/" + url.PathEscape(c.model)
	if c.version != "" {
		path += "/versions/" + url.PathEscape(c.version)
	}
	m.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: path}
	return m
}

func exactly(header, value string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}}}
}

// rename makes a call name what answers: in the path of HTTP, in TargetHeader for gRPC,
// whose gateway puts it in place of the message's model.
func (b *builder) rename(c call, r *routev3.Route, action *routev3.RouteAction) {
	if c.alike {
		return
	}
	if c.protocol == protocolGRPC {
		r.RequestHeadersToAdd = append(r.RequestHeadersToAdd, b.set(TargetHeader, modelPath(c.target.Model, c.target.Version)))
		return
	}
	from := "^/v2/models/" + regexp.QuoteMeta(url.PathEscape(c.model))
	to := "/v2/models/" + url.PathEscape(c.target.Model)
	switch {
	case c.version != "":
		from += "/versions/" + regexp.QuoteMeta(url.PathEscape(c.version))
		fallthrough
	case c.target.Version != "":
		if c.version == "" {
			from += "(/versions/[^/?]+)?"
		}
		if c.target.Version != "" {
			to += "/versions/" + url.PathEscape(c.target.Version)
		}
	}
	action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
		Pattern:      &matcherv3.RegexMatcher{Regex: from},
		Substitution: strings.ReplaceAll(to, `\`, `\\`)}
}

func modelPath(model, version string) string {
	if version == "" {
		return model
	}
	return model + "/" + version
}

func (b *builder) set(header, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: header, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

// mirrors are the policies of copies. The path of a copy is the call's own after its
// rewriting, so another model or version goes into TargetHeader.
func (b *builder) mirrors(c call) []*routev3.RouteAction_RequestMirrorPolicy {
	var out []*routev3.RouteAction_RequestMirrorPolicy
	for _, m := range c.mirror {
		p := &routev3.RouteAction_RequestMirrorPolicy{
			Cluster: b.clusterOf(c.protocol, m.Group, m.Model, m.Version),
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
				Numerator: uint32(math.Round(m.Percent / 100 * million)), Denominator: typev3.FractionalPercent_MILLION}},
			TraceSampled: wrapperspb.Bool(false),
		}
		if m.Model != c.target.Model || m.Version != c.target.Version {
			p.RequestHeadersMutations = []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Append{
				Append: b.set(TargetHeader, modelPath(m.Model, m.Version))}}}
		}
		if b.t.Services.Picker != nil { // a copy's sequence is nobody's
			p.RequestHeadersMutations = append(p.RequestHeadersMutations, &mutationv3.HeaderMutation{
				Action: &mutationv3.HeaderMutation_Remove{Remove: infer.PlacementHeader}})
		}
		out = append(out, p)
	}
	return out
}

// hostSelections is how often Envoy chooses anew for a repetition, until the choice is a
// gateway that the call was not sent to. A killed one has the fewest calls in progress, so
// that least_request chooses it in three of four cases where there are two; 0.75^64 is 1e-8.
const hostSelections = 64

// retries are for calls that certainly were not begun: no connection, a stream refused
// or reset before the request was sent, or a gateway that said it is stopping or not
// ready. Nothing that may belong to a sequence is ever sent twice.
func (b *builder) retries(c call, stream bool) *routev3.RetryPolicy {
	if b.up.NoRetries || c.stateful || stream {
		return nil
	}
	predicate := &previousv3.PreviousHostsPredicate{}
	p := &routev3.RetryPolicy{
		RetryOn:    "connect-failure,refused-stream,reset-before-request,retriable-headers",
		NumRetries: wrapperspb.UInt32(uint32(b.up.Retries)),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: b.packed(predicate)}}},
		HostSelectionRetryMaxAttempts: hostSelections,
		RetryBackOff:                  &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(5 * time.Millisecond), MaxInterval: durationpb.New(100 * time.Millisecond)},
	}
	for _, reason := range []string{"stopping", "not_ready"} {
		p.RetriableHeaders = append(p.RetriableHeaders, exactly(ReasonHeader, reason))
	}
	// A call of a sequence that says so is left alone on any route.
	p.RetriableRequestHeaders = []*routev3.HeaderMatcher{{Name: SequenceHeader, InvertMatch: true,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}}
	return p
}

// String is for faults.
func (t Target) String() string {
	return fmt.Sprintf("%s in %s", modelPath(t.Model, t.Version), t.Group)
}
