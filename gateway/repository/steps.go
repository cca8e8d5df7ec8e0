package repository

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// resolve finds the model that an ensemble of a namespace means: the one that the step
// names, or that of its own repository, or the only one of that name.
func (v *view) resolve(own string, n Need) *served {
	if v.spaces != nil {
		for _, space := range []string{n.Namespace, own} {
			if s := v.spaces[key{space, n.Name}]; s != nil {
				return s
			}
		}
	}
	if s := v.models[n.Name]; s != nil && s.same < 2 {
		return s
	}
	return nil
}

// step is the version that a step runs; nil: there is none.
func (v *view) step(own string, n Need) *Model {
	s := v.resolve(own, n)
	if s == nil {
		return nil
	}
	if n.Version < 0 {
		return s.latest
	}
	m, err := s.find(n.Name, fmt.Sprint(n.Version))
	if err != nil {
		return nil
	}
	return m
}

// AcquireStep is Acquire for a step of a model of that namespace ("" where namespaces
// are off): a name means the model of the same repository first.
func (r *Repository) AcquireStep(ctx context.Context, own string, n Need) (*Model, error) {
	if r.cfg.Namespacing {
		for {
			m := r.view.Load().step(own, n)
			if m == nil {
				break // Acquire says why
			}
			if m.pin() {
				return m, nil
			}
			if err := ctx.Err(); err != nil {
				return nil, infer.Errorf(infer.Cancelled, "request was cancelled: %w", err)
			}
		}
	}
	version := ""
	if n.Version >= 0 {
		version = fmt.Sprint(n.Version)
	}
	return r.Acquire(ctx, n.Name, version)
}

// missing are the models that an ensemble needs and that don't serve.
func (r *Repository) missing(own string, needs []Need) []string {
	v := r.view.Load()
	var names []string
	for _, n := range needs {
		if v.step(own, n) == nil && !slices.Contains(names, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names
}

// pathKey carries a loadPath.
type pathKey struct{}

// loadPath are the ensembles whose loads led to one of a step, and the turns that they hold.
type loadPath struct {
	keys  []key
	chain *chain
}

func pathOf(ctx context.Context) loadPath {
	if p, ok := ctx.Value(pathKey{}).(loadPath); ok {
		return p
	}
	return loadPath{chain: &chain{}}
}

func within(ctx context.Context, p loadPath) context.Context {
	return context.WithValue(ctx, pathKey{}, p)
}

// readySteps loads the models that an ensemble needs and that are not loaded, or whose
// folders have changed. One that can't be loaded and serves on is good enough. What a load
// call brought stays: only a call for that model itself goes back to its folder.
func (r *Repository) readySteps(ctx context.Context, c *change) error {
	needs := Needs(c.plan.Config)
	if len(needs) == 0 {
		return nil
	}
	if err := r.circular(ctx, c.k, c.plan.Config); err != nil {
		r.park(c, false)
		return err
	}
	p := pathOf(ctx)
	if slices.Contains(p.keys, c.k) {
		return infer.Errorf(infer.InvalidArg, "ensemble %s contains itself", c.k.name)
	}
	ctx = within(ctx, loadPath{append(slices.Clone(p.keys), c.k), p.chain})
	if r.cfg.Mode == Explicit {
		var seen []key
		for _, n := range needs {
			folders, _, err := r.find(ctx, n.Name)
			if err != nil {
				r.deps.Log.Error(fmt.Sprintf("looking for the steps of ensemble '%s': %s", c.k.name, err))
			}
			for _, f := range meant(folders, c.k.namespace, n) {
				if slices.Contains(seen, f.key()) {
					continue
				}
				seen = append(seen, f.key())
				if err := r.inTurn(ctx, f, &Override{}, nil); err != nil {
					r.deps.Log.Error(fmt.Sprintf("a step of ensemble '%s': %s", c.k.name, err))
				}
			}
		}
	}
	if ctx.Err() != nil {
		return stopped(ctx)
	}
	err := r.stepsFault(ctx, c.k, c.plan.Config)
	r.park(c, err == nil)
	return c.plan.Source.Locate(err)
}

// servesCall says that versions serve whose config or files a load call brought.
func (r *Repository) servesCall(k key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[k]
	if e == nil || e.source == nil || !e.source.call {
		return false
	}
	for _, v := range e.versions {
		if v.state == Ready {
			return true
		}
	}
	return false
}

// meant keeps the folders that a step means.
func meant(folders []Folder, own string, n Need) []Folder {
	for _, space := range []string{n.Namespace, own} {
		for _, f := range folders {
			if space != "" && f.Namespace == space {
				return []Folder{f}
			}
		}
	}
	return folders
}

// recheck takes an ensemble out of service whose steps have changed while it was loaded: whoever
// changed them did not see it yet. The caller holds its turn.
func (r *Repository) recheck(ctx context.Context, k key) {
	r.mu.Lock()
	e := r.entries[k]
	if e == nil || e.source == nil || e.parked || !e.wanted {
		r.mu.Unlock()
		return
	}
	fits := r.fits(k, e.source.cfg)
	r.mu.Unlock()
	if !fits {
		r.drop(ctx, k, true)
	}
}

// fits says that an ensemble can serve with the models that serve; so can all other models.
func (r *Repository) fits(k key, cfg *configpb.ModelConfig) bool {
	needs := Needs(cfg)
	if len(needs) == 0 {
		return true
	}
	if len(r.missing(k.namespace, needs)) > 0 {
		return false
	}
	_, err := r.checkEnsemble(k, cfg)
	return err == nil
}

// reconsiderSoon is reconsider, for which its caller waits as long as for answers of versions
// that are replaced: another load may have an ensemble's turn for much longer.
func (r *Repository) reconsiderSoon(ctx context.Context, name string) {
	if len(r.dependents(name)) == 0 {
		return
	}
	inner, end, ok := r.begin(context.WithoutCancel(ctx))
	if !ok {
		return
	}
	over := make(chan struct{})
	go func() {
		defer end()
		defer close(over)
		r.reconsider(inner, name)
	}()
	late := time.NewTimer(settleTime)
	defer late.Stop()
	select {
	case <-over:
	case <-late.C:
	case <-ctx.Done():
	}
}

// reconsider looks at the ensembles that need a model which has changed: one whose step
// is gone, or does not fit any more, is unloaded, one that waited for it is loaded. The
// turn of no model may be held.
func (r *Repository) reconsider(ctx context.Context, name string) {
	for _, k := range r.dependents(name) {
		moved, err := r.reconsiderOne(ctx, k)
		if err != nil {
			r.deps.Log.Error(fmt.Sprintf("ensemble '%s': %s", k.name, err))
		}
		if moved {
			r.reconsider(ctx, k.name)
		}
	}
}

// dependents are the ensembles whose steps run a model and whose state does not fit it.
func (r *Repository) dependents(name string) []key {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []key
	for k, e := range r.entries {
		src := e.ensembleSource()
		if src == nil || !e.wanted && !e.parked {
			continue
		}
		if !slices.ContainsFunc(Needs(src.cfg), func(n Need) bool { return n.Name == name }) {
			continue
		}
		if r.fits(k, src.cfg) == e.parked {
			all = append(all, k)
		}
	}
	return all
}

// reconsiderOne does that for one ensemble; moved: it was loaded or taken out of service.
func (r *Repository) reconsiderOne(ctx context.Context, k key) (moved bool, err error) {
	l := &pendingLoad{key: k, call: &Override{}}
	ctx = r.pending.add(ctx, l)
	defer r.pending.remove(l)
	p := loadPath{chain: &chain{}}
	give, err := r.turns.take(ctx, p.chain, k)
	if err != nil {
		return false, err
	}
	defer give()
	r.mu.Lock()
	e := r.entries[k]
	if e == nil || e.ensembleSource() == nil {
		r.mu.Unlock()
		return false, nil
	}
	src, parked := e.ensembleSource(), e.parked
	r.mu.Unlock()
	err = r.stepsFault(ctx, k, src.cfg)
	switch {
	case err == nil && parked:
		f := Folder{Name: k.name, Dir: src.dir, Namespace: k.namespace, ConfigName: r.cfg.ConfigName, Config: src.given(), Renamed: src.renamed}
		err := r.newChange(f, l, false).reload(within(ctx, p))
		r.recheck(ctx, k)
		return err == nil, err
	case err == nil || parked:
		return false, nil
	}
	r.drop(ctx, k, true)
	return true, err
}

// given is the config that a load call brought, nil where the folder's own was read.
func (s *source) given() *configpb.ModelConfig {
	if s.call {
		return s.cfg
	}
	return nil
}
