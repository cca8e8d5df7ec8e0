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

	"github.com/sluice-serve/sluice/internal/configfile"
	"github.com/sluice-serve/sluice/xds"
)

// State is how a gateway was found.
type State struct {
	Ready    bool
	Degraded bool        // not ready only while workers are started again
	Models   []xds.Model // nil: not known
	// Silent says that nothing came back in time: the gateway may be well, and the way to
	// it broken.
	Silent bool
}

// equal says that both say the same.
func (s *State) equal(o *State) bool {
	return s.Ready == o.Ready && s.Degraded == o.Degraded && s.Silent == o.Silent &&
		(s.Models == nil) == (o.Models == nil) && slices.Equal(s.Models, o.Models)
}

// Source tells of one gateway.
type Source interface {
	// Watch calls report with the gateway's state at once and when it may have changed,
	// until ctx ends.
	Watch(ctx context.Context, report func(State))
}

// Server takes topologies.
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
	// Reloaded is told how each reading of changed files ended; nil: nobody. A fault that
	// stays is told once.
	Reloaded func(error)
}

// Fleet feeds one control plane.
type Fleet struct {
	cfg  Config
	deps Deps

	files *files

	mu     sync.Mutex
	states map[string]State // mu; by member's key
	wake   chan struct{}
}

// New reads the files once, so that a bad topology fails at once.
func New(cfg Config, deps Deps) (*Fleet, error) {
	f := &Fleet{cfg: cfg, deps: deps, states: map[string]State{}, wake: make(chan struct{}, 1)}
	var err error
	if f.files, err = openFiles(cfg.File, &cfg.Base, time.Now()); err != nil {
		return nil, err
	}
	return f, nil
}

// Run watches until ctx ends. The first topology is told when every gateway was asked
// once, or after a Timeout: Envoys that know more from an earlier control plane must not
// hear that nobody is ready.
func (f *Fleet) Run(ctx context.Context) error {
	w := &watch{members: map[string]*member{}, resolver: newResolver(f.cfg.Timeout, f.nudge), until: time.Now().Add(f.cfg.Timeout)}
	defer w.running.Wait()
	defer func() {
		for _, m := range w.members {
			m.stop()
		}
	}()
	tick := time.NewTicker(f.cfg.Interval)
	defer tick.Stop()
	for {
		f.round(ctx, w)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.wake:
		}
	}
}

// watch is what Run knows from one look to the next.
type watch struct {
	running  sync.WaitGroup
	members  map[string]*member // by key
	resolver *resolver
	until    time.Time     // the first topology is told then at the latest
	told     *xds.Topology // nil: none yet
	good     loaded        // the files of told
	refused  string        // the last error of the control plane, which is logged once
}

// round looks at files and gateways once, and tells what has changed. A topology that
// the control plane refuses leaves the one before in force, with what is found of its
// gateways.
func (f *Fleet) round(ctx context.Context, w *watch) {
	changed := f.look()
	t := *f.files.topology
	gateways, found := w.resolver.expand(ctx, &w.running, t.Gateways, f.own, f.deps.Log)
	t.Gateways = gateways
	if w.told == nil {
		f.follow(ctx, w, &t)
	}
	asked := f.fill(&t, w.told)
	if w.told == nil && !(found && asked) && time.Now().Before(w.until) {
		return
	}
	if changed || w.told == nil || !same(w.told, &t) {
		if err := f.deps.Server.Set(&t, maps.Clone(f.files.secrets)); err != nil {
			if err.Error() != w.refused {
				w.refused = err.Error()
				f.deps.Log.Error("control plane: the topology is refused", "error", err)
				f.reloaded(err)
			}
			if w.told != nil {
				f.files.loaded = w.good
			}
			return
		}
		if changed || w.told == nil {
			f.reloaded(nil)
		}
		w.told, w.good, w.refused = &t, f.files.loaded, ""
	}
	if changed { // perhaps with new certificates or another token
		for key, m := range w.members {
			if m.remote {
				m.stop()
				delete(w.members, key)
			}
		}
	}
	f.follow(ctx, w, &t)
}

// look looks at the files and says whether others are in force now.
func (f *Fleet) look() (changed bool) {
	result, err := f.files.look(time.Now())
	switch result {
	case configfile.Failed:
		f.deps.Log.Error("control plane: the old files count on", "error", err)
		f.reloaded(err)
	case configfile.Restored:
		f.deps.Log.Info("control plane: the files are again those in force")
		f.reloaded(nil)
	}
	return result == configfile.Changed
}

func (f *Fleet) reloaded(err error) {
	if f.deps.Reloaded != nil {
		f.deps.Reloaded(err)
	}
}

// own says that a gateway tells of itself.
func (f *Fleet) own(name string) bool { return f.deps.Sources[name] != nil }

// same says that two topologies of the same file are alike in what was found.
func same(a, b *xds.Topology) bool {
	return slices.EqualFunc(a.Gateways, b.Gateways, func(a, b xds.Gateway) bool {
		return a.Name == b.Name && a.HTTP == b.HTTP && a.GRPC == b.GRPC && a.Group == b.Group && a.Zone == b.Zone && a.Weight == b.Weight &&
			a.Draining == b.Draining && a.Ready == b.Ready && a.Degraded == b.Degraded &&
			(a.Models == nil) == (b.Models == nil) && slices.Equal(a.Models, b.Models)
	})
}

// member is a gateway that is watched.
type member struct {
	remote bool // it is asked over the network
	stop   context.CancelFunc
}

// key names a gateway by where it is: under another name it is the same.
func (f *Fleet) key(g *xds.Gateway) string {
	if f.own(g.Name) {
		return "own " + g.Name
	}
	return g.HTTP + " " + g.GRPC
}

// follow begins to watch gateways that are new and leaves those that are gone.
func (f *Fleet) follow(ctx context.Context, w *watch, t *xds.Topology) {
	there := map[string]bool{}
	for i := range t.Gateways {
		g := t.Gateways[i]
		key := f.key(&g)
		there[key] = true
		if w.members[key] != nil {
			continue
		}
		source := f.deps.Sources[g.Name]
		remote := source == nil
		if remote {
			s, err := newRemote(&g, t, f.files.secrets, &f.cfg)
			if err != nil {
				f.deps.Log.Error("control plane: a gateway can't be asked", "gateway", g.Name, "error", err)
				w.members[key] = &member{remote, func() {}} // said once
				f.report(ctx, g.Name, key, State{})
				continue
			}
			source = s
		}
		inner, stop := context.WithCancel(ctx)
		w.members[key] = &member{remote, stop}
		w.running.Go(func() { source.Watch(inner, func(s State) { f.report(inner, g.Name, key, s) }) })
	}
	for key, m := range w.members {
		if !there[key] {
			m.stop()
			delete(w.members, key)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.states, func(key string, _ State) bool { return !there[key] })
}

// report notes what a source says, unless nobody listens to it any more.
func (f *Fleet) report(ctx context.Context, name, key string, s State) {
	f.mu.Lock()
	if ctx.Err() != nil {
		f.mu.Unlock()
		return
	}
	old, known := f.states[key]
	f.states[key] = s
	f.mu.Unlock()
	if known && old.equal(&s) {
		return
	}
	if !known || old.Ready != s.Ready || old.Degraded != s.Degraded {
		f.deps.Log.Info("control plane: gateway", "name", name, "ready", s.Ready,
			"degraded", s.Degraded, "models", len(s.Models))
	}
	f.nudge()
}

func (f *Fleet) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// fill puts what was found into t; asked says that every gateway was asked. A control
// plane that hears of no gateway at all in time has lost its own way to them, and goes on
// telling what it told last of those: Envoys ask for readiness themselves.
func (f *Fleet) fill(t, told *xds.Topology) (asked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked = true
	silent := told != nil
	for i := range t.Gateways {
		g := &t.Gateways[i]
		s, known := f.states[f.key(g)]
		asked, silent = asked && known, silent && s.Silent
		g.Ready, g.Degraded, g.Models = s.Ready, s.Degraded, s.Models
	}
	if !silent {
		return asked
	}
	last := make(map[string]*xds.Gateway, len(told.Gateways))
	for i := range told.Gateways {
		last[f.key(&told.Gateways[i])] = &told.Gateways[i]
	}
	for i := range t.Gateways {
		if g := &t.Gateways[i]; last[f.key(g)] != nil {
			l := last[f.key(g)]
			g.Ready, g.Degraded, g.Models = l.Ready, l.Degraded, l.Models
		}
	}
	return asked
}

// errNoAnswer is a gateway's answer that says nothing.
var errNoAnswer = errors.New("no answer")

func unexpected(what string, status int) error {
	return fmt.Errorf("%s: %w: status %d", what, errNoAnswer, status)
}
