// Package fleet finds out how the gateways of a topology are, reads the files that it
// names, and tells the control plane when something has changed.
//
// Each gateway has a goroutine of its own that asks it in turn; the others only ever
// see its newest State. Run starts them and waits for them.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/xds"
)

// State is how a gateway was found.
type State struct {
	Ready  bool
	Models []xds.Model // nil: not known
}

// equal says that both say the same.
func (s *State) equal(o *State) bool {
	return s.Ready == o.Ready && (s.Models == nil) == (o.Models == nil) && slices.Equal(s.Models, o.Models)
}

// Source tells of one gateway.
type Source interface {
	// Watch calls report with the gateway's state at once and when it may have changed,
	// until ctx ends.
	Watch(ctx context.Context, report func(State))
}

// Server takes topologies; xds.Server is one.
type Server interface {
	Set(t *xds.Topology, secrets xds.Secrets) error
}

// Config is a Fleet in values.
type Config struct {
	// File is a topology in YAML, which is read again when it changes; "": Base is all.
	File string
	// Base is the topology without a file; with one, its gateways come on top.
	Base xds.Topology
	// Interval lies between two looks at files and gateways.
	Interval time.Duration
	// Timeout bounds one question to a gateway.
	Timeout time.Duration
}

// Deps are a Fleet's collaborators.
type Deps struct {
	Server  Server
	Log     *slog.Logger
	Sources map[string]Source // gateways by name that are not asked over the network
}

// Fleet feeds one control plane.
type Fleet struct {
	cfg  Config
	deps Deps

	files *files

	mu     sync.Mutex
	states map[string]State // mu; by gateway's name, see member.key
	wake   chan struct{}
}

// New reads the files once, so that a bad topology fails at once.
func New(cfg Config, deps Deps) (*Fleet, error) {
	f := &Fleet{cfg: cfg, deps: deps, files: newFiles(cfg.File, &cfg.Base), states: map[string]State{}, wake: make(chan struct{}, 1)}
	if _, err := f.files.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Run watches until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	members := map[string]*member{}
	defer func() {
		for _, m := range members {
			m.stop()
		}
	}()
	tick := time.NewTicker(f.cfg.Interval)
	defer tick.Stop()
	resolver := newResolver(f.cfg.Timeout)
	var told *xds.Topology
	fault, refused := "", ""
	for first := true; ; first = false {
		changed, err := f.files.read()
		if err == nil {
			fault = ""
		} else if err.Error() != fault { // told once, not at every look
			fault = err.Error()
			f.deps.Log.Error("control plane: the old files count on", "error", err)
		}
		t := *f.files.topology
		t.Gateways = resolver.expand(ctx, t.Gateways, f.deps.Log)
		if changed && t.Upstream.TLS != nil { // with the new files
			for name, m := range members {
				m.stop()
				delete(members, name)
			}
		}
		f.follow(ctx, &watching, members, &t)
		f.fill(&t)
		if changed || first || told == nil || !same(told, &t) {
			if err := f.deps.Server.Set(&t, maps.Clone(f.files.secrets)); err == nil {
				told, refused = &t, ""
			} else if told = nil; err.Error() != refused {
				refused = err.Error()
				f.deps.Log.Error("control plane: the topology is refused", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.wake:
		}
	}
}

// same says that two topologies of the same file are alike in what was found.
func same(a, b *xds.Topology) bool {
	return slices.EqualFunc(a.Gateways, b.Gateways, func(a, b xds.Gateway) bool {
		return a.Name == b.Name && a.HTTP == b.HTTP && a.GRPC == b.GRPC && a.Group == b.Group && a.Zone == b.Zone && a.Weight == b.Weight &&
			a.Draining == b.Draining && a.Ready == b.Ready && (a.Models == nil) == (b.Models == nil) && slices.Equal(a.Models, b.Models)
	})
}

// member is a gateway that is watched.
type member struct {
	key  string
	stop context.CancelFunc
}

// follow begins to watch gateways that are new and leaves those that are gone.
func (f *Fleet) follow(ctx context.Context, watching *sync.WaitGroup, members map[string]*member, t *xds.Topology) {
	there := map[string]bool{}
	for i := range t.Gateways {
		g := t.Gateways[i]
		there[g.Name] = true
		key := g.HTTP + " " + g.GRPC
		if m := members[g.Name]; m != nil {
			if m.key == key {
				continue
			}
			m.stop()
		}
		source := f.deps.Sources[g.Name]
		if source == nil {
			s, err := newRemote(&g, t.Upstream.TLS, f.files.secrets, &f.cfg)
			if err != nil {
				f.deps.Log.Error("control plane: a gateway can't be asked", "gateway", g.Name, "error", err)
				continue
			}
			source = s
		}
		inner, stop := context.WithCancel(ctx)
		members[g.Name] = &member{key, stop}
		watching.Go(func() { source.Watch(inner, func(s State) { f.report(inner, g.Name, s) }) })
	}
	for name, m := range members {
		if !there[name] {
			m.stop()
			delete(members, name)
			f.mu.Lock()
			delete(f.states, name)
			f.mu.Unlock()
		}
	}
}

// report notes what a source says, unless nobody listens to it any more.
func (f *Fleet) report(ctx context.Context, name string, s State) {
	f.mu.Lock()
	old, known := f.states[name]
	if ctx.Err() == nil {
		f.states[name] = s
	}
	f.mu.Unlock()
	if known && old.equal(&s) {
		return
	}
	if !known || old.Ready != s.Ready {
		f.deps.Log.Info("control plane: gateway", "name", name, "ready", s.Ready, "models", len(s.Models))
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// fill puts what was found into t.
func (f *Fleet) fill(t *xds.Topology) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range t.Gateways {
		g := &t.Gateways[i]
		s := f.states[g.Name]
		g.Ready, g.Models = s.Ready, s.Models
	}
}

// errNoAnswer is a gateway's answer that says nothing.
var errNoAnswer = errors.New("no answer")

func unexpected(what string, status int) error {
	return fmt.Errorf("%s: %w: status %d", what, errNoAnswer, status)
}
