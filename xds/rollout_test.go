package xds

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// TestTranscripts replays events; lines that begin with a blank are decisions.
//
//	rollout                        begins anew
//	wish CLUSTERS ROUTES           lists with commas; - is none
//	at DURATION [confirmed]        time goes on to DURATION after the start
//	gateway NAME MODEL/VERSION...  a live gateway; "out" in place of models: not ready
//	route MODEL TARGET...          what is asked for; a target is model/version
//	switch                         what counts
func TestTranscripts(t *testing.T) { transcript.Run(t, *update, replay) }

type replayer struct {
	start   time.Time
	rollout *Rollout
	now     time.Time
	sw      Switch
	t       Topology
	out     bytes.Buffer
}

func replay(t *testing.T, text []byte) []byte {
	r := &replayer{start: time.Unix(0, 0)}
	return transcript.Replay(t, text, &r.out, r.event)
}

func (r *replayer) event(verb string, args []string) error {
	switch verb {
	case "rollout":
		r.rollout, r.now = NewRollout(DefaultRollout()), r.start
	case "wish":
		r.rollout.Set(r.now, resources(list(args[0]), list(args[1])))
		r.step(false)
	case "at":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		r.now = r.start.Add(d)
		r.step(len(args) > 1)
	case "gateway":
		r.gateway(args[0], args[1:])
	case "route":
		r.route(args[0], args[1:])
	case "switch":
		got, held := r.sw.Step(&r.t)
		for i := range got.Routes {
			var to []string
			for k := range got.Routes[i].Targets {
				to = append(to, modelPath(got.Routes[i].target(k).Model, got.Routes[i].target(k).Version))
			}
			fmt.Fprintf(&r.out, "  %s: %s\n", got.Routes[i].Model, strings.Join(to, " "))
		}
		for _, h := range held {
			fmt.Fprintf(&r.out, "  %s waits for %s on %q\n", h.Model, modelPath(h.Target.Model, h.Target.Version), h.Gateway)
		}
	default:
		return fmt.Errorf("unknown event %q", verb)
	}
	return nil
}

func (r *replayer) step(confirmed bool) {
	out, at := r.rollout.Step(r.now, confirmed)
	if out != nil {
		fmt.Fprintf(&r.out, "  publish clusters %s, routes %s\n", names(out.Clusters), names(out.Routes))
	}
	if !at.IsZero() {
		fmt.Fprintf(&r.out, "  next at %v\n", at.Sub(r.start))
	}
}

func (r *replayer) gateway(name string, models []string) {
	g := Gateway{Name: name, HTTP: "127.0.0.1:1", Ready: true, Models: []Model{}}
	for _, m := range models {
		if m == "out" {
			g.Ready = false
			continue
		}
		model, version, _ := strings.Cut(m, "/")
		g.Models = append(g.Models, Model{Name: model, Version: version, Ready: true})
	}
	r.t.Gateways = slices.DeleteFunc(slices.Clone(r.t.Gateways), func(o Gateway) bool { return o.Name == name })
	r.t.Gateways = append(r.t.Gateways, g)
}

func (r *replayer) route(name string, targets []string) {
	route := Route{Model: name}
	for _, t := range targets {
		model, version, _ := strings.Cut(t, "/")
		route.Targets = append(route.Targets, Target{Model: model, Version: version, Weight: 1})
	}
	r.t.Routes = slices.DeleteFunc(slices.Clone(r.t.Routes), func(o Route) bool { return o.Model == name })
	r.t.Routes = append(r.t.Routes, route)
}

func list(text string) []string {
	if text == "-" {
		return nil
	}
	return strings.Split(text, ",")
}

func names(kind map[string]types.Resource) string {
	if len(kind) == 0 {
		return "-"
	}
	return strings.Join(slices.Sorted(maps.Keys(kind)), ",")
}

// resources has clusters and, as stand-ins for a route table, routes that each use the
// cluster of the same name.
func resources(clusters, routes []string) *Resources {
	r := &Resources{Clusters: map[string]types.Resource{}, Endpoints: map[string]types.Resource{}, Secrets: map[string]types.Resource{},
		Routes: map[string]types.Resource{}, Listeners: map[string]types.Resource{}}
	for _, c := range clusters {
		r.Clusters[c] = &clusterv3.Cluster{Name: c}
	}
	for _, c := range routes {
		r.Routes[c] = &routev3.RouteConfiguration{Name: c}
	}
	return r
}

// TestRolloutAtRandom wishes at random times for random clusters and routes, and checks
// what a broken order would break: a route to a cluster that is not there or came less
// than the settling time ago, a cluster gone while routes to it may be in use, a wish
// that never comes true.
func TestRolloutAtRandom(t *testing.T) {
	for seed := range uint64(300) {
		rollAtRandom(t, rand.New(rand.NewPCG(seed, 1)))
	}
}

func rollAtRandom(t *testing.T, random *rand.Rand) {
	t.Helper()
	cfg := DefaultRollout()
	o, now := NewRollout(cfg), time.Unix(0, 0)
	m := &rolled{t: t, cfg: cfg, since: map[string]time.Time{}, used: map[string]time.Time{}}
	var last *Resources
	for range 60 {
		if random.IntN(3) == 0 {
			last = someResources(random)
			o.Set(now, last)
		}
		out, at := o.Step(now, random.IntN(2) == 0)
		m.see(now, out)
		if random.IntN(2) == 0 && !at.IsZero() && at.After(now) {
			now = at
		} else {
			now = now.Add(time.Duration(random.IntN(400)) * time.Millisecond)
		}
	}
	for range 20 {
		out, at := o.Step(now, true)
		m.see(now, out)
		if at.IsZero() {
			break
		}
		now = at
	}
	if last != nil && !m.now.Equal(last) {
		t.Fatalf("at the end clusters %s, routes %s; want %s, %s", names(m.now.Clusters), names(m.now.Routes), names(last.Clusters), names(last.Routes))
	}
}

func someResources(random *rand.Rand) *Resources {
	var clusters, routes []string
	for _, c := range []string{"a", "b", "c", "d", "e"} {
		if random.IntN(2) == 0 {
			clusters = append(clusters, c)
			if random.IntN(3) > 0 {
				routes = append(routes, c)
			}
		}
	}
	return resources(clusters, routes)
}

// rolled is what an Envoy would have.
type rolled struct {
	t     *testing.T
	cfg   RolloutConfig
	now   *Resources
	since map[string]time.Time // cluster → when it came
	used  map[string]time.Time // cluster → when the last route to it went
	grows time.Time            // when the first cluster came that routes wait for
	moved bool                 // the routes have followed
}

func (m *rolled) see(now time.Time, out *Resources) {
	m.t.Helper()
	if out == nil {
		return
	}
	first := m.now == nil
	for c := range out.Clusters {
		if first || m.now.Clusters[c] == nil {
			if m.since[c] = now; m.moved {
				m.grows, m.moved = now, false
			}
		}
	}
	for c := range out.Routes {
		if out.Clusters[c] == nil {
			m.t.Fatalf("a route to %s, which is not there", c)
		}
		if age := now.Sub(m.since[c]); !first && m.now.Routes[c] == nil && age < m.cfg.Settle && now.Sub(m.grows) < m.cfg.MaxSettle {
			m.t.Fatalf("a route to %s %v after it came", c, age)
		}
	}
	if !first {
		for c := range m.now.Routes {
			if out.Routes[c] == nil {
				m.used[c] = now
			}
		}
		for c := range m.now.Clusters {
			if at, ok := m.used[c]; out.Clusters[c] == nil && ok && now.Sub(at) < m.cfg.Grace {
				m.t.Fatalf("%s is gone %v after its last route", c, now.Sub(at))
			}
		}
	}
	m.moved = m.moved || first || names(m.now.Routes) != names(out.Routes)
	m.now = out
}
