package xds

import (
	"cmp"
	"strings"
	"time"
)

// Topology is everything that the control plane knows, as a file says it and as the
// gateways were found. The zero value of each field means what its comment says.
// A Topology that was given away is not changed any more.
type Topology struct {
	Listeners []Listener `yaml:"listeners"` // empty: one on 0.0.0.0:10000
	Gateways  []Gateway  `yaml:"gateways"`
	Routes    []Route    `yaml:"routes"` // for models that are not simply sent where they are
	Services  Services   `yaml:"services"`
	Upstream  Upstream   `yaml:"upstream"`
}

// Listener is where Envoy takes calls: HTTP/1.1, HTTP/2 and gRPC on one port.
type Listener struct {
	Name    string     `yaml:"name"`    // "": mesh
	Address string     `yaml:"address"` // "": 0.0.0.0
	Port    int        `yaml:"port"`    // 0: any free one, which Envoy's admin interface tells
	Unix    string     `yaml:"unix"`    // path of a socket in place of Address and Port
	TLS     *ServerTLS `yaml:"tls"`     // nil: plain text
	// AccessLog is the file that Envoy writes a line of JSON to for each call; "":
	// its standard output; "none": no log.
	AccessLog string `yaml:"access_log"`
	// TrustedHops is how many proxies in front may be believed about the caller's address.
	TrustedHops int `yaml:"trusted_hops"`
	// Internal are the callers, as CIDR, that may bound their calls by the header
	// x-envoy-upstream-rq-timeout-ms; nil: loopback and private addresses.
	Internal []string `yaml:"internal"`
}

// ServerTLS are PEM files of a listener, read by the control plane, which sends them to
// Envoy as secrets and again when they change.
type ServerTLS struct {
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"client_ca"` // roots of client certificates; "": clients show none
	Optional bool   `yaml:"optional"`  // with ClientCA: clients without a certificate pass too
}

// ClientTLS are PEM files with which Envoy calls gateways.
type ClientTLS struct {
	CA   string `yaml:"ca"`   // roots of the gateways' certificates
	Cert string `yaml:"cert"` // shown to gateways; "": none
	Key  string `yaml:"key"`
	Name string `yaml:"name"` // the DNS name that gateways must have in their certificate; "": not looked at
}

// DefaultGroup is the group of gateways that name none.
const DefaultGroup = "default"

// Gateway is one gateway: where it is, and how it was found.
type Gateway struct {
	Name  string `yaml:"name"`  // unique
	Group string `yaml:"group"` // "": DefaultGroup; routes may send a share of calls to a group
	// HTTP and GRPC are its two ports: host:port or unix:path; "": it has not that
	// protocol. Build wants IP addresses, which xds/fleet finds for names.
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	Zone string `yaml:"zone"`
	// Weight is its share among those of its group; 0: 1.
	Weight int `yaml:"weight"`
	// Draining takes no new calls, those in flight end.
	Draining bool `yaml:"draining"`

	// Ready is what its readiness says.
	Ready bool `yaml:"-"`
	// Degraded says that it is not ready only while its workers are started again: calls go
	// there where no gateway is ready, and wait.
	Degraded bool `yaml:"-"`
	// Models is its repository index; nil: not known, and every model is taken to be
	// there.
	Models []Model `yaml:"-"`
}

// Model is one version of a model on a gateway.
type Model struct {
	Name, Version string
	Ready         bool
	Stateful      bool // has sequences: its calls are never repeated elsewhere
}

// Route says where calls of one model go. Models without a route go to the gateways of
// DefaultGroup that have them ready.
type Route struct {
	// Model is the name that clients say: a model's own, or any other (an alias).
	Model string `yaml:"model"`
	// Version is the version that clients say; "": calls without one, and those for
	// versions that have no route of their own.
	Version string `yaml:"version"`
	// Targets are what answers; the calls are shared out by their weights. When they
	// change, Switch keeps the old ones until all new ones are ready on every gateway.
	Targets []Target `yaml:"targets"`
	// Mirror sends copies whose answers nobody sees.
	Mirror []Mirror `yaml:"mirror"`
	// Timeout bounds a call; 0: only what the call itself says.
	Timeout time.Duration `yaml:"timeout"`
	// Stateful calls belong to sequences: none is repeated, and those that carry
	// SequenceHeader go to one gateway.
	Stateful bool `yaml:"stateful"`
}

// Target is one answerer of a Route.
type Target struct {
	Model   string `yaml:"model"`   // "": the route's
	Version string `yaml:"version"` // "": what the call says
	Group   string `yaml:"group"`   // "": DefaultGroup
	Weight  int    `yaml:"weight"`  // 0: 1, if it is the only one; else none
}

// Mirror is who gets copies.
type Mirror struct {
	Model   string  `yaml:"model"`   // "": the route's
	Version string  `yaml:"version"` // "": what the call says
	Group   string  `yaml:"group"`   // "": DefaultGroup
	Percent float64 `yaml:"percent"` // of the calls, in (0, 100]
}

// Services are those that Envoy asks about calls; nil: it does not.
type Services struct {
	Authz     *Service   `yaml:"authz"`      // envoy.service.auth.v3.Authorization
	RateLimit *Service   `yaml:"rate_limit"` // envoy.service.ratelimit.v3.RateLimitService
	Picker    *Service   `yaml:"picker"`     // envoy.service.ext_proc.v3.ExternalProcessor
	Collector *Collector `yaml:"collector"`  // of OpenTelemetry spans
}

// Service is one gRPC service.
type Service struct {
	// Address is host:port or unix:path; "": the control plane itself.
	Address string `yaml:"address"`
	// Timeout is what it may take; 0: 200 ms.
	Timeout time.Duration `yaml:"timeout"`
	// Closed refuses calls when the service does not answer. Authorization is always
	// closed.
	Closed bool `yaml:"closed"`
}

// Collector takes spans over OTLP/gRPC.
type Collector struct {
	Address string `yaml:"address"` // host:port or unix:path
	// Percent of the calls that are traced when their caller did not decide; nil: 100.
	Percent *float64 `yaml:"percent"`
	Service string   `yaml:"service"` // service name of Envoy's spans; "": envoy
}

// The policies of Upstream.Balance.
const (
	BalanceLeastRequest = "least_request"
	BalanceRoundRobin   = "round_robin"
	// BalanceLoad is client-side weighted round robin by the load that gateways report.
	BalanceLoad = "load"
	// BalanceHash sends calls of one SequenceHeader to one gateway, others anywhere.
	BalanceHash = "hash"
)

// The headers that Envoy's configuration speaks of. ModelHeader and VersionHeader name
// the model of a gRPC call, whose message Envoy does not read: a client may set them, or
// the endpoint picker. SequenceHeader is the correlation ID of a sequence.
const (
	ModelHeader    = "x-sluice-model"
	VersionHeader  = "x-sluice-model-version"
	SequenceHeader = "x-sluice-sequence"
	// TargetHeader is set by Envoy alone: the model, or model/version, that answers a
	// gRPC call or a mirrored one in place of what the message says.
	TargetHeader = "x-sluice-target"
	// DegradedHeader asks a gateway's readiness, with "accept", to answer 200 and
	// x-envoy-degraded while workers are started again: it is not ready, but calls wait there.
	DegradedHeader = "x-sluice-degraded"
	// ReasonHeader says why a gateway refused.
	ReasonHeader = "x-sluice-reason"
	// PrincipalHeader is who calls, as the authorization service found out, and ProofHeader
	// what a gateway knows it by. No client's word under these names gets through.
	PrincipalHeader = "x-sluice-principal"
	ProofHeader     = "x-sluice-proof"
)

// Upstream is how Envoy calls gateways. Zeros are the defaults that DefaultUpstream has.
type Upstream struct {
	Balance string     `yaml:"balance"`
	HTTP2   bool       `yaml:"http2"` // h2c (or h2) in place of HTTP/1.1 for the HTTP port
	TLS     *ClientTLS `yaml:"tls"`   // nil: plain text
	// TokenFile holds what the control plane and the picker show gateways that have a
	// policy, as a bearer token: an API key, or a JWT. Envoy is never told. "": nothing.
	TokenFile string `yaml:"token_file"`
	// Zones is "prefer": calls stay in Envoy's own zone as long as enough gateways there
	// are healthy; "spread": all zones alike, by weight.
	Zones string `yaml:"zones"`
	// ConnectTimeout bounds a connection's making.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// HealthInterval lies between two health checks, each of which asks /v2/health/ready.
	HealthInterval time.Duration `yaml:"health_interval"`
	// Ejection is how long a gateway is left out after ErrorsInRow answers that were the
	// gateway's fault.
	Ejection    time.Duration `yaml:"ejection"`
	ErrorsInRow int           `yaml:"errors_in_row"`
	// Retries of one call that was certainly not begun; NoRetries: none at all.
	Retries   int  `yaml:"retries"`
	NoRetries bool `yaml:"no_retries"`
	// RetryBudget bounds the repetitions in progress of a cluster, in percent of MaxRequests.
	RetryBudget float64 `yaml:"retry_budget"`
	// BufferBytes is what Envoy may hold of one call in each direction, and of a body
	// that may have to be sent again; larger ones flow, but are not repeated.
	BufferBytes int64 `yaml:"buffer_bytes"`
	// MaxConnections, MaxPending and MaxRequests are the circuit breakers of a cluster.
	MaxConnections int `yaml:"max_connections"`
	MaxPending     int `yaml:"max_pending"`
	MaxRequests    int `yaml:"max_requests"`
	// MaxStreams of one HTTP/2 connection.
	MaxStreams int `yaml:"max_streams"`
	// IdleTimeout ends a call on which nothing moves; streaming calls have none.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

// DefaultUpstream is what zeros of an Upstream mean.
func DefaultUpstream() Upstream {
	return Upstream{Balance: BalanceLeastRequest, Zones: "prefer", ConnectTimeout: time.Second, HealthInterval: time.Second,
		Ejection: 10 * time.Second, ErrorsInRow: 5, Retries: 2, RetryBudget: 20, BufferBytes: 8 << 20,
		MaxConnections: 4096, MaxPending: 4096, MaxRequests: 16384, MaxStreams: 1024, IdleTimeout: time.Hour}
}

// orDefault is v, or d for a zero.
func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// filled is u with the defaults in place of zeros.
func (u Upstream) filled() Upstream {
	d := DefaultUpstream()
	u.Balance, u.Zones = orDefault(u.Balance, d.Balance), orDefault(u.Zones, d.Zones)
	u.ConnectTimeout, u.HealthInterval = orDefault(u.ConnectTimeout, d.ConnectTimeout), orDefault(u.HealthInterval, d.HealthInterval)
	u.Ejection, u.ErrorsInRow = orDefault(u.Ejection, d.Ejection), orDefault(u.ErrorsInRow, d.ErrorsInRow)
	u.Retries, u.RetryBudget = orDefault(u.Retries, d.Retries), orDefault(u.RetryBudget, d.RetryBudget)
	u.BufferBytes, u.MaxStreams = orDefault(u.BufferBytes, d.BufferBytes), orDefault(u.MaxStreams, d.MaxStreams)
	u.MaxConnections, u.MaxPending = orDefault(u.MaxConnections, d.MaxConnections), orDefault(u.MaxPending, d.MaxPending)
	u.MaxRequests, u.IdleTimeout = orDefault(u.MaxRequests, d.MaxRequests), orDefault(u.IdleTimeout, d.IdleTimeout)
	return u
}

// group is the gateway's group.
func (g *Gateway) group() string { return orDefault(g.Group, DefaultGroup) }

// live says that calls may be sent there.
func (g *Gateway) live() bool { return (g.Ready || g.Degraded) && !g.Draining }

// has says that the gateway has the model ready; version "" is any.
func (g *Gateway) has(model, version string) bool {
	if g.Models == nil {
		return true
	}
	for i := range g.Models {
		if m := &g.Models[i]; m.Ready && m.Name == model && (version == "" || m.Version == version) {
			return true
		}
	}
	return false
}

// target fills what a Target leaves to its route.
func (r *Route) target(i int) Target {
	t := r.Targets[i]
	t.Model, t.Version, t.Group = orDefault(t.Model, r.Model), orDefault(t.Version, r.Version), orDefault(t.Group, DefaultGroup)
	if len(r.Targets) == 1 {
		t.Weight = 1
	}
	return t
}

// mirror fills what a Mirror leaves to its route.
func (r *Route) mirror(i int) Mirror {
	m := r.Mirror[i]
	m.Model, m.Version, m.Group = orDefault(m.Model, r.Model), orDefault(m.Version, r.Version), orDefault(m.Group, DefaultGroup)
	return m
}

// Compare orders models by name and version.
func (m Model) Compare(o Model) int {
	return cmp.Or(strings.Compare(m.Name, o.Name), strings.Compare(m.Version, o.Version))
}
