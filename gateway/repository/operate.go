package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Source of the texts: ModelRepositoryManager::LoadUnloadModel and
// InferenceServer::LoadModel of the original.
var (
	errMode    = errors.New("explicit model load / unload is not allowed if polling is enabled")
	errStarted = errors.New("Server not ready")
)

// controlled says whether load and unload calls are taken now.
func (r *Repository) controlled() error {
	if err := r.running(); err != nil {
		return err
	}
	if r.cfg.Mode != Explicit {
		return infer.Errorf(infer.Unavailable, "%w", errMode)
	}
	return nil
}

// running says whether the models of the start are loaded.
func (r *Repository) running() error {
	select {
	case <-r.started:
		return nil
	default:
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%w", errStarted)
	}
}

// Load is a load call: it makes a model serve what its folder or call says, and
// returns when it does and the requests of the versions before are answered, or nearly
// so. A model that serves goes on until then, and stays as it was when the load fails.
// Loads of one model follow one another. When ctx ends, Load returns; what it began goes
// on. Errors: Unavailable in another control mode, ResourceExhausted where the caller
// (infer.CallerOf) has too many loads, *LoadError, Cancelled, also where a later call overtook it.
func (r *Repository) Load(ctx context.Context, name string, call *Override) error {
	if err := r.controlled(); err != nil {
		return err
	}
	inner, end, ok := r.begin(context.WithoutCancel(ctx))
	if !ok {
		return errStopping()
	}
	leave, err := r.enter(infer.CallerOf(ctx))
	if err != nil {
		end()
		return err
	}
	if call, err = r.layDown(ctx, call); err != nil {
		leave()
		end()
		return err
	}
	return await(ctx, inner, end, func(ctx context.Context) error {
		defer leave()
		defer func() {
			if err := call.drop(); err != nil {
				r.deps.Log.Error(fmt.Sprintf("removing the files of a load call of '%s': %s", name, err))
			}
		}()
		l := &pendingLoad{key: key{name: name}, any: true, call: call}
		ctx = r.pending.add(ctx, l)
		defer r.pending.remove(l)
		folders, err := r.targets(ctx, name, call)
		if err != nil {
			if over := wasOvertaken(ctx); over != nil {
				return over
			}
			return err
		}
		var errs []error
		for _, f := range folders { // of several namespaces
			errs = append(errs, r.inTurn(ctx, f, call, func(e *entry) { e.explicit = true }))
		}
		r.reconsiderSoon(ctx, name)
		return errors.Join(errs...)
	})
}

// enter counts a load call of a caller until leave.
func (r *Repository) enter(caller string) (leave func(), err error) {
	most := cmp.Or(r.cfg.LoadQueue, defaultLoadQueue)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls[caller] >= most {
		return nil, infer.Refusef(infer.ResourceExhausted, infer.ReasonQueueFull, "%d load calls of this caller wait or are under way, "+
			"the most of --model-load-queue-size is %d", r.calls[caller], most)
	}
	r.calls[caller]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls[caller]--; r.calls[caller] == 0 {
			delete(r.calls, caller)
		}
	}, nil
}

// targets are the folders that a load call means.
func (r *Repository) targets(ctx context.Context, name string, call *Override) ([]Folder, error) {
	if name == "" { // which would be all to find
		return nil, &LoadError{Name: name, Err: errNoModel}
	}
	folders, _, err := r.find(ctx, name)
	switch {
	case call.hasFiles():
		f := Folder{Name: name}
		if len(folders) == 1 {
			f.Namespace = folders[0].Namespace
		}
		return []Folder{f}, nil
	case len(folders) == 0 && err != nil:
		return nil, &LoadError{Name: name, Err: err}
	case len(folders) == 0:
		return nil, &LoadError{Name: name, Err: errNoModel}
	}
	return folders, nil
}

// operate runs what a call began. It goes on when the caller leaves.
func (r *Repository) operate(ctx context.Context, do func(context.Context) error) error {
	inner, end, ok := r.begin(context.WithoutCancel(ctx))
	if !ok {
		return errStopping()
	}
	return await(ctx, inner, end, do)
}

// await runs do with inner, as operate does; end ends what it is counted as.
func await(ctx, inner context.Context, end func(), do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		defer end()
		done <- do(inner)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "the caller left; the load goes on: %w", context.Cause(ctx))
	}
}

// inTurn reloads a model when it is its turn. It ends the loads before it that would load
// something else; the load of an ensemble's step does not, but comes after them. before, if any,
// is told the entry first.
func (r *Repository) inTurn(ctx context.Context, f Folder, call *Override, before func(*entry)) error {
	p := pathOf(ctx)
	if slices.Contains(p.keys, f.key()) {
		return nil // a circle, which the ensemble at its beginning finds
	}
	l := &pendingLoad{key: f.key(), call: call}
	ctx = r.pending.add(ctx, l)
	defer r.pending.remove(l)
	if len(p.keys) == 0 {
		r.pending.loading(l, f.Dir)
	}
	give, err := r.turns.take(ctx, p.chain, f.key())
	if err != nil {
		return err
	}
	defer give()
	if len(p.keys) > 0 && r.servesCall(f.key()) {
		return nil // an ensemble's step; asked in its turn, since a call's load may have been under way
	}
	if before != nil {
		r.mu.Lock()
		before(r.entryLocked(f.key()))
		r.mu.Unlock()
	}
	err = r.newChange(f, l, r.cfg.Mode == Poll).reload(within(ctx, p))
	r.recheck(ctx, f.key())
	return err
}

// Unload is an unload call: when it returns, no request gets the model any more; its
// memory is freed once those that have it are answered. dependents unloads with an
// ensemble the models that it needs and that nobody else does. A name that Register gave
// means that model alone, as for Load. A model that is not there is no error. Errors: Unavailable in another control mode, Cancelled.
func (r *Repository) Unload(ctx context.Context, name string, dependents bool) error {
	if err := r.controlled(); err != nil {
		return err
	}
	return r.operate(ctx, func(ctx context.Context) error {
		for _, k := range r.meantBy(name) {
			if err := r.unload(ctx, k, dependents); err != nil {
				return err
			}
		}
		return nil
	})
}

// meantBy are the models of which an unload call names one, or one of each namespace.
func (r *Repository) meantBy(name string) (keys []key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	given := r.mappedLocked(name)
	for k := range r.entries {
		if k.name == name && (given == nil || given.seen[k]) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (r *Repository) unload(ctx context.Context, k key, dependents bool) error {
	r.pending.unloading(k)
	give, err := r.turns.take(ctx, &chain{}, k)
	if err != nil {
		return err
	}
	needs := r.drop(ctx, k, false)
	give()
	r.reconsiderSoon(ctx, k.name)
	if !dependents {
		return nil
	}
	for _, n := range needs {
		if other, ok := r.unneeded(k.namespace, n); ok {
			if err := r.unload(ctx, other, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop takes a model out of service and gives what it needed. A parked one comes back
// when its steps do.
func (r *Repository) drop(ctx context.Context, k key, park bool) []Need {
	var over []*Model
	var needs []Need
	r.update(func(entries map[key]*entry) {
		e := entries[k]
		if e == nil {
			return
		}
		if e.source != nil {
			needs = Needs(e.source.cfg)
		}
		e.wanted, e.fault, e.parked = false, "", park
		if !park {
			e.explicit, e.source = false, nil
		}
		for _, v := range e.versions {
			if v.state == Ready {
				v.state, v.reason = Unloading, ""
				over = append(over, v.model)
			}
		}
	})
	r.retireLater(ctx, over, r.unloaded(k))
	return needs
}

// unneeded finds the model of a step that was loaded for ensembles alone, none of which
// is left, and that nobody loads just now.
func (r *Repository) unneeded(own string, n Need) (key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range []key{{n.Namespace, n.Name}, {own, n.Name}, {"", n.Name}} {
		e := r.entries[k]
		if e == nil {
			continue
		}
		if e.explicit || !e.wanted || r.pending.has(k) {
			return key{}, false
		}
		for _, o := range r.entries {
			if o.wanted && o.source != nil && slices.ContainsFunc(Needs(o.source.cfg), func(m Need) bool { return m.Name == n.Name }) {
				return key{}, false
			}
		}
		return k, true
	}
	return key{}, false
}

// find lists the model folders of all repositories, or those of one model, after what
// is elsewhere was brought here. failed are the repositories that could not be listed;
// the error says why.
func (r *Repository) find(ctx context.Context, name string) (folders []Folder, failed []string, err error) {
	folders, mapped, err := r.joinedFolders(name)
	if mapped {
		return folders, nil, err
	}
	errs := []error{err}
	if name != "" && (name != filepath.Base(name) || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "\x00\\/")) {
		return nil, nil, nil
	}
	for _, path := range r.cfg.Paths {
		local := path
		if r.deps.Stores != nil && r.deps.Stores.Remote(path) {
			if local, err = r.deps.Stores.Sync(ctx, path, name); err != nil {
				errs = append(errs, err)
			}
			if local == "" {
				failed = append(failed, path)
				continue
			}
		}
		found, err := Find([]string{local})
		if err != nil {
			errs, failed = append(errs, err), append(failed, path)
		}
		for _, f := range found {
			if name != "" && f.Name != name {
				continue
			}
			f.ConfigName = r.cfg.ConfigName
			if r.cfg.Namespacing {
				f.Namespace = path
			}
			folders = merge(folders, f)
		}
	}
	slices.SortStableFunc(folders, func(a, b Folder) int { return strings.Compare(a.Name, b.Name) })
	return folders, failed, errors.Join(errs...)
}

// merge adds a folder to those that were found; two of one key can't be served.
func merge(folders []Folder, f Folder) []Folder {
	for i := range folders {
		if folders[i].key() != f.key() {
			continue
		}
		if folders[i].Dir != f.Dir {
			folders[i].Also = append(folders[i].Also, f.Dir)
		}
		return folders
	}
	return append(folders, f)
}
