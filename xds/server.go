package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// maxZones bounds the zones that Envoys may make the server build resources for.
const maxZones = 64

// Server turns topologies into what Envoys are told. New makes it, Run drives it.
type Server struct {
	cfg   RolloutConfig
	log   *slog.Logger
	cache cachev3.SnapshotCache
	wake  chan struct{}

	mu       sync.Mutex
	topology *Topology         // mu; the newest, with the targets that count now; nil: none yet
	secrets  Secrets           // mu
	changed  bool              // mu; Run has not seen topology or a zone yet
	zones    map[string]*zone  // mu; by name; "" is there always
	streams  map[int64]*stream // mu
	kept     int64             // mu; sum of the streams' sizes
	gone     []string          // mu; zones without Envoys, whose snapshots are still in the cache
	held     []Held            // mu
	rejected uint64            // mu; updates that Envoys refused

	setting sync.Mutex // held by Set; before mu
	route   Switch     // setting
}

// zone is what is published to the Envoys of one zone.
type zone struct {
	rollout *Rollout // of Run alone
	cluster string   // mu; version of the clusters published last
}

// stream is one Envoy's connection.
type stream struct {
	node string // its name, as it says
	zone string
	took string            // version of the clusters it took last
	sent map[string]string // nonce → version, of clusters over delta; at most maxUnanswered
	// names are the bytes of the names it subscribed to, by type; size is their sum and that
	// of its nodes.
	names map[string]int64
	size  int64
}

// Deps are a Server's collaborators.
type Deps struct {
	Log *slog.Logger
}

// New makes a Server that publishes nothing until Set.
func New(cfg RolloutConfig, deps Deps) *Server {
	s := &Server{cfg: cfg, log: deps.Log, wake: make(chan struct{}, 1), zones: map[string]*zone{"": {rollout: NewRollout(cfg)}},
		streams: map[int64]*stream{}}
	s.cache = cachev3.NewSnapshotCache(false, nodeZone{s}, log.LoggerFuncs{})
	return s
}

// Register serves the aggregated discovery service on r; its streams end with ctx.
func (s *Server) Register(ctx context.Context, r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, serverv3.NewServer(ctx, s.cache, callbacks{s}))
}

// Set makes t what Envoys are to be told, with the contents of the files that it names.
// A t that can't be built is an error and changes nothing. t and secrets belong to the
// Server from then on. What counts is given back: t, where routes that wait have their
// old targets.
func (s *Server) Set(t *Topology, secrets Secrets) (*Topology, error) {
	s.setting.Lock()
	defer s.setting.Unlock()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if _, err := Build(t, "", secrets); err != nil {
		return nil, err
	}
	t, held := s.route.Step(t)
	s.tellHeld(held)
	s.mu.Lock()
	s.topology, s.secrets, s.changed = t, secrets, true
	s.mu.Unlock()
	s.nudge()
	return t, nil
}

// Restore says which targets routes had in an earlier life of the control plane; it is
// called before Set.
func (s *Server) Restore(routes []Route) {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.route.Restore(routes)
}

// Held are the routes that wait for their targets to be ready.
func (s *Server) Held() []Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// Counts are the Envoys connected, and the updates that Envoys refused so far.
func (s *Server) Counts() (envoys int, rejected uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams), s.rejected
}

func (s *Server) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		at, err := s.step(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			s.log.Error("control plane: not published", "error", err)
		}
		wait := time.Hour
		if !at.IsZero() {
			wait = max(time.Until(at), time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// step brings every zone as far as now allows, and says when to come again.
func (s *Server) step(ctx context.Context, now time.Time) (at time.Time, err error) {
	s.clearGone()
	s.mu.Lock()
	t, secrets, changed := s.topology, s.secrets, s.changed
	s.changed = false
	zones := make(map[string]*zone, len(s.zones))
	for name, z := range s.zones {
		zones[name] = z
	}
	s.mu.Unlock()
	if t == nil {
		return time.Time{}, nil
	}
	var errs []error
	for name, z := range zones {
		if changed {
			r, err := Build(t, name, secrets)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			z.rollout.Set(now, r)
		}
		out, next := z.rollout.Step(now, s.taken(name, z))
		if out != nil {
			errs = append(errs, s.publish(ctx, name, z, out))
			s.nudge() // without Envoys the next phase needs no wait
		}
		if !next.IsZero() && (at.IsZero() || next.Before(at)) {
			at = next
		}
	}
	return at, errors.Join(errs...)
}

func (s *Server) publish(ctx context.Context, name string, z *zone, r *Resources) error {
	snapshot, err := r.snapshot()
	if err != nil {
		return fmt.Errorf("zone %q: %w", name, err)
	}
	s.mu.Lock()
	z.cluster = snapshot.GetVersion(resource.ClusterType)
	s.mu.Unlock()
	return s.cache.SetSnapshot(ctx, name, snapshot)
}

// taken says that all Envoys of a zone have taken the clusters published last.
func (s *Server) taken(name string, z *zone) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		if st.zone == name && st.took != z.cluster {
			return false
		}
	}
	return true
}

// tellHeld logs what began and what ceased to wait.
func (s *Server) tellHeld(held []Held) {
	s.mu.Lock()
	old := s.held
	s.held = held
	s.mu.Unlock()
	was := map[[2]string]Held{}
	for _, h := range old {
		was[[2]string{h.Model, h.Version}] = h
	}
	for _, h := range held {
		key := [2]string{h.Model, h.Version}
		if was[key] != h {
			s.log.Info("control plane: a route waits for its target", "model", h.Model, "version", h.Version, "target", h.Target.String(), "gateway", h.Gateway)
		}
		delete(was, key)
	}
	for _, h := range was {
		s.log.Info("control plane: a route has switched", "model", h.Model, "version", h.Version)
	}
}

// nodeZone makes the cache keep a snapshot for each zone.
type nodeZone struct{ s *Server }

// ID is the zone of an Envoy, "" when the server does not know it.
func (n nodeZone) ID(node *corev3.Node) string {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if z := node.GetLocality().GetZone(); n.s.zones[z] != nil {
		return z
	}
	return ""
}

// joined notes an Envoy's first word and makes its zone known.
func (s *Server) joined(id int64, node *corev3.Node) {
	if node == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[id]
	if st == nil || st.zone != "" {
		return
	}
	st.node = node.GetId()
	z := node.GetLocality().GetZone()
	if s.zones[z] == nil {
		if len(s.zones) >= maxZones && !s.dropZoneLocked() {
			return
		}
		s.zones[z] = &zone{rollout: NewRollout(s.cfg)}
		s.changed = true
		s.nudge()
	}
	st.zone = z
}
