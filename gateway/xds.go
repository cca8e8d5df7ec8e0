package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/gateway/control"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/xds"
	"github.com/sluice-serve/sluice/xds/fleet"
	"github.com/sluice-serve/sluice/xds/plane"
)

// XDSConfig is --xds-…: the control plane of Envoys inside this gateway.
type XDSConfig struct {
	Listen           // Allow: --xds-port was given
	TLS     TLSFiles // Root: Envoys must show a certificate
	Envoys  []string // names in the certificates of those that are served; empty: all
	State   string   // a file for the targets of routes; "": none
	File    string   // a topology; "": this gateway and Peers
	Name    string   // of this gateway in the topology
	Host    string   // where Envoys reach this gateway; "": its address, or loopback where that is every address
	Zone    string   // of this gateway
	Peers   []xds.Gateway
	Mesh    int // the port on which Envoys listen, without File
	Rollout xds.RolloutConfig
}

// DefaultXDS is no control plane.
func DefaultXDS() XDSConfig {
	return XDSConfig{Listen: Listen{Address: "127.0.0.1"}, Name: "self", Mesh: xds.DefaultPort, Rollout: xds.DefaultRollout()}
}

// Validate says what is wrong with the settings, or nil.
func (c *XDSConfig) Validate() error {
	if !c.Allow {
		if c.File != "" || len(c.Peers) > 0 {
			return errors.New("--xds-config and --xds-peer need --xds-port")
		}
		return nil
	}
	c.TLS.Mutual = c.TLS.Root != ""
	if len(c.Envoys) > 0 && !c.TLS.Mutual {
		return errors.New("--xds-envoy needs --xds-root-cert, by which Envoys show certificates")
	}
	return errors.Join(c.TLS.Validate(), plane.Exposed(c.Address, c.TLS.Mutual))
}

// xdsInterval lies between two looks of a control plane at its files and gateways.
const (
	xdsInterval = 250 * time.Millisecond
	xdsTimeout  = 2 * time.Second
)

// openXDS makes the control plane, once the ports of the front ends are known.
func (g *Gateway) openXDS(ctx context.Context) error {
	c := &g.cfg.XDS
	if !c.Allow {
		return nil
	}
	sockets := c.config()
	sockets.Descriptors = g.files
	listeners, err := listen.Open(ctx, sockets)
	if err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	deps := plane.Deps{Log: g.logger, Listeners: listeners, Sources: map[string]fleet.Source{c.Name: &itself{g.control}},
		Reloaded: g.stats.Reload("topology").Done}
	deps.Register, deps.Watch = g.meshServices()
	if deps.TLS, err = g.secure("xds", c.TLS, "h2"); err != nil {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	conf := plane.Config{Rollout: c.Rollout, State: c.State, Envoys: c.Envoys,
		SequenceScope: g.cfg.Sequences.Scope, Fleet: fleet.Config{File: c.File, Interval: xdsInterval, Timeout: xdsTimeout,
			Base: xds.Topology{Gateways: append([]xds.Gateway{g.itself()}, c.Peers...)}}}
	if c.File == "" {
		l := xds.DefaultListener()
		l.Port = c.Mesh
		conf.Fleet.Base.Listeners = []xds.Listener{l}
	}
	p, err := plane.New(conf, deps)
	if err != nil {
		return err
	}
	g.xds, g.xdsPort = p, portOf(listeners[0].Addr())
	g.stats.Add(p.Metrics)
	return nil
}

// meshServices are the services that Envoys ask about calls, on the control plane's
// port, and what wants to know the topology.
func (g *Gateway) meshServices() (register []func(grpc.ServiceRegistrar), watch []func(*xds.Topology)) {
	register = append(register, ExtAuthz(g.auth).Register)
	if g.limits != nil {
		register = append(register, RateLimits(g.limits).Register)
	}
	return register, watch
}

// itself is this gateway in its topology.
func (g *Gateway) itself() xds.Gateway {
	c, p := &g.cfg.XDS, g.ports()
	out := xds.Gateway{Name: c.Name, Zone: c.Zone}
	at := func(l *Listen, port int) string {
		if port == 0 {
			return ""
		}
		host := c.Host
		if ip := net.ParseIP(l.Address); host == "" && ip != nil && !ip.IsUnspecified() {
			host = l.Address
		}
		if host == "" {
			host = "127.0.0.1"
		}
		return net.JoinHostPort(host, strconv.Itoa(port))
	}
	out.HTTP, out.GRPC = at(&g.cfg.HTTP.Listen, p.HTTP), at(&g.cfg.GRPC.Listen, p.GRPC)
	return out
}

// itself tells the control plane of the gateway that it runs in.
type itself struct{ control *control.Server }

// Watch is fleet.Source.
func (s *itself) Watch(ctx context.Context, report func(fleet.State)) {
	ready := false
	news := s.control.WatchReady(ctx)
	tick := time.NewTicker(xdsInterval)
	defer tick.Stop()
	for {
		select {
		case v, ok := <-news:
			if !ok {
				return
			}
			ready = v
		case <-tick.C: // models come and go without a word
		}
		report(fleet.State{Ready: ready, Degraded: !ready && s.control.Degraded(), Models: s.models()})
	}
}

func (s *itself) models() []xds.Model {
	index, err := s.control.Index(false)
	if err != nil {
		return nil
	}
	out := make([]xds.Model, 0, len(index.GetModels()))
	for _, m := range index.GetModels() {
		one := xds.Model{Name: m.GetName(), Version: m.GetVersion(), Ready: m.GetState() == "READY"}
		if one.Ready {
			if config, err := s.control.ModelConfig(one.Name, one.Version); err == nil {
				one.Stateful = config.GetSequenceBatching() != nil
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, xds.Model.Compare)
	return out
}
