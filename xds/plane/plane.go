// Package plane is a control plane put together: what xds.Server publishes, what
// xds/fleet finds, and one gRPC server for Envoy's streams and for the services that
// Envoy asks about calls. A gateway runs one, and `sluice xds` does.
package plane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
	"github.com/sluice-serve/sluice/xds/fleet"
	"github.com/sluice-serve/sluice/xds/picker"
)

// Config is a Plane in values.
type Config struct {
	Fleet   fleet.Config
	Rollout xds.RolloutConfig
	// Envoys are the names of those that are served, where TLS asks for certificates: a DNS
	// name or a URI in theirs; empty: every certificate that the roots signed.
	Envoys []string
	// State is a file in which the targets of routes outlive the control plane, so that
	// one that starts amid a switch knows the old ones; "": none.
	State string
	// SequenceScope says which callers share correlation IDs, for the endpoint picker: the
	// gateways' own.
	SequenceScope infer.SequenceScope
}

// Deps are a Plane's collaborators.
type Deps struct {
	Log *slog.Logger
	// Listeners are the Plane's from New on, also when New fails.
	Listeners []net.Listener
	TLS       *tls.Config // nil: plain text
	// Register puts further services on the gRPC server: authorization, rate limits,
	// endpoint picker.
	Register []func(grpc.ServiceRegistrar)
	Sources  map[string]fleet.Source // see fleet.Deps
	// Watch is told every topology that Envoys are told; nil: nobody.
	Watch []func(*xds.Topology)
	// Reloaded is told how each reading of changed files ended; nil: nobody.
	Reloaded func(error)
}

// Exposed refuses a control plane that would tell keys and addresses to everybody: other
// addresses than loopback need TLS with certificates of Envoys.
func Exposed(address string, mutual bool) error {
	ip := net.ParseIP(address)
	if address == "localhost" || ip != nil && ip.IsLoopback() || mutual {
		return nil
	}
	return fmt.Errorf("the control plane tells the keys of certificates: on %q it needs --xds-cert, --xds-key and --xds-root-cert", address)
}

// served is t, for Envoys of these names alone.
func served(t *tls.Config, names []string) *tls.Config {
	if len(names) == 0 {
		return t
	}
	t = t.Clone()
	inner := t.VerifyConnection
	t.VerifyConnection = func(c tls.ConnectionState) error {
		if inner != nil {
			if err := inner(c); err != nil {
				return err
			}
		}
		if len(c.PeerCertificates) == 0 {
			return errors.New("no certificate of an Envoy")
		}
		leaf := c.PeerCertificates[0]
		for _, name := range names {
			if slices.Contains(leaf.DNSNames, name) || slices.ContainsFunc(leaf.URIs, func(u *url.URL) bool { return u.String() == name }) {
				return nil
			}
		}
		return errors.New("the certificate is not one of the Envoys that are served here")
	}
	return t
}

// Plane is a running control plane. New makes it, Run serves.
type Plane struct {
	server    *xds.Server
	fleet     *fleet.Fleet
	grpc      *grpc.Server
	health    *health.Server
	listeners []net.Listener
	watch     []func(*xds.Topology)
	log       *slog.Logger
	register  []func(grpc.ServiceRegistrar)
	picker    *picker.Server
	state     state // of Set alone
}

// maxMessage bounds what Envoy sends at once: what it shows the picker, and some words.
const maxMessage = xds.MaxPicked + 1<<20

// keepaliveTime is when a silent Envoy is asked whether it is there.
const keepaliveTime = 30 * time.Second

// New reads the topology and its files.
func New(cfg Config, deps Deps) (*Plane, error) {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), // Envoy may show the picker as much of a body as it holds
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if deps.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(served(deps.TLS, cfg.Envoys))))
	}
	p := &Plane{server: xds.New(cfg.Rollout, xds.Deps{Log: deps.Log}), grpc: grpc.NewServer(options...), health: health.NewServer(),
		listeners: deps.Listeners, watch: deps.Watch, log: deps.Log, register: deps.Register,
		picker: picker.New(picker.Config{Scope: cfg.SequenceScope}, picker.Deps{Log: deps.Log})}
	p.register = append(p.register, p.picker.Register)
	p.state.file = cfg.State
	p.restore()
	var err error
	p.fleet, err = fleet.New(cfg.Fleet, fleet.Deps{Server: p, Log: deps.Log, Sources: deps.Sources, Reloaded: deps.Reloaded})
	if err != nil {
		return nil, errors.Join(err, p.closeListeners())
	}
	return p, nil
}

// Set is fleet.Server.
func (p *Plane) Set(t *xds.Topology, secrets xds.Secrets) error {
	if err := p.serves(&t.Services); err != nil {
		return err
	}
	t, err := p.server.Set(t, secrets)
	if err != nil {
		return err
	}
	p.remember(t.Routes)
	p.picker.Set(t, secrets)
	for _, f := range p.watch {
		f(t)
	}
	p.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	return nil
}

// serves says which services Envoy would ask here in vain; every call would fail then.
func (p *Plane) serves(s *xds.Services) error {
	have := p.grpc.GetServiceInfo()
	var errs []error
	for _, want := range []struct {
		field, service string
		of             *xds.Service
	}{{"authz", "envoy.service.auth.v3.Authorization", s.Authz}, {"rate_limit", "envoy.service.ratelimit.v3.RateLimitService", s.RateLimit},
		{"picker", "envoy.service.ext_proc.v3.ExternalProcessor", s.Picker}} {
		if _, ok := have[want.service]; want.of != nil && want.of.Address == "" && !ok {
			errs = append(errs, fmt.Errorf("services: %s has no address, and this control plane does not answer it", want.field))
		}
	}
	return errors.Join(errs...)
}

// Held are the routes that wait; see xds.Server.
func (p *Plane) Held() []xds.Held { return p.server.Held() }

// Metrics gives the control plane's figures by their names in Prometheus; labels
// alternate name and value.
func (p *Plane) Metrics(gauge, counter func(name, help string, v float64, labels ...string)) {
	envoys, rejected := p.server.Counts()
	gauge("sluice_xds_envoys", "Envoys connected to the control plane.", float64(envoys))
	counter("sluice_xds_rejected_updates_total", "Updates that Envoys refused, keeping what they had.", float64(rejected))
	gauge("sluice_xds_held_routes", "Routes that wait for their new targets to be ready on every gateway.", float64(len(p.Held())))
	for why, n := range p.picker.Counts() {
		counter("sluice_picker_picks_total", "Calls that the endpoint picker decided on, by what decided.", float64(n), "why", string(why))
	}
}

// Run serves until ctx ends or a listener fails. Envoys keep what they were told.
func (p *Plane) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	healthpb.RegisterHealthServer(p.grpc, p.health)
	p.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	p.server.Register(ctx, p.grpc)
	for _, f := range p.register {
		f(p.grpc)
	}
	errs := make(chan error, len(p.listeners)+3)
	var running sync.WaitGroup
	run := func(f func() error) {
		running.Go(func() {
			if err := f(); err != nil {
				errs <- err
				stop()
			}
		})
	}
	run(func() error { return p.server.Run(ctx) })
	run(func() error { return p.fleet.Run(ctx) })
	run(func() error { return p.picker.Run(ctx) })
	for _, l := range p.listeners {
		p.log.Info("Started control plane at " + l.Addr().String())
		run(func() error { return p.grpc.Serve(l) })
	}
	<-ctx.Done()
	p.grpc.Stop()
	running.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (p *Plane) closeListeners() error {
	var errs []error
	for _, l := range p.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
