package gateway

import (
	"context"
	"strconv"
	"time"

	"github.com/sluice-serve/sluice/gateway/load"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/stats"
)

// LoadConfig is --load-report.
type LoadConfig struct {
	// Always is the format in which every answer names the load; callers may ask for it
	// in any case.
	Always load.Format
}

// openLoad makes the meter of the gateway's load.
func (g *Gateway) openLoad() {
	machine := stats.Machine()
	g.load.Always = g.cfg.Load.Always
	g.load.Meter = load.New(load.Config{Started: time.Now()}, load.Deps{Models: g.loads, Ready: func() bool { return g.control.Ready() },
		Machine: func() load.Machine {
			cpu, memory := machine()
			return load.Machine{CPU: cpu, Memory: memory}
		}})
}

// runLoad looks at the load until ctx ends.
func (g *Gateway) runLoad(ctx context.Context) { g.load.Meter.Run(ctx) }

// loads appends what every model has going on. A model that no client can call for the
// moment, since all its instances are down or its scheduler is, is left out.
func (g *Gateway) loads(to []load.Model) []load.Model {
	local := g.cfg.Cache["local"] != nil
	g.models.Each(func(m *repository.Model) {
		_, up := m.Instances()
		ensemble := m.Config.GetEnsembleScheduling() != nil
		if !m.Ready() && !ensemble {
			return
		}
		going := m.Going()
		one := load.Model{Name: m.Name, Version: strconv.FormatInt(m.Version, 10), Waiting: going.Waiting, Inflight: going.Inflight,
			Busy: going.Busy, Instances: up, Sequence: g.models.Stateful(m), Cached: local && m.Current() != nil}
		if ensemble {
			one.Instances, one.Waiting = 0, 0 // its steps have them
		}
		if s, ok := m.Stats().(*stats.Model); ok {
			c := s.Counts()
			one.Requests, one.Failed, one.Executed, one.Compute = c.Requests, c.Failed, c.Executed, c.Compute
		}
		to = append(to, one)
	})
	return to
}
