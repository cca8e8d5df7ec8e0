package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"
)

// slack is the part of an interval that two looks may come early.
const slack = 10

// Run takes over changes of the repositories until ctx ends, in mode Poll; it begins
// when LoadAll is over. It goes on polling while models are loaded, and returns when all loads
// have ended. A folder is taken once two looks at it saw the same files, so
// that one which is being written is left alone. A repository that can't be listed keeps
// its models.
func (r *Repository) Run(ctx context.Context) {
	if r.cfg.Mode != Poll || r.cfg.PollInterval <= 0 {
		return
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return
	}
	watch := newSteady(r.cfg.PollInterval - r.cfg.PollInterval/slack)
	tick := time.NewTicker(r.cfg.PollInterval)
	defer tick.Stop()
	last := ""
	var loads sync.WaitGroup
	defer loads.Wait()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		begun := make(chan error)
		loads.Go(func() { r.poll(ctx, watch, begun) })
		err := <-begun
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last { // a repository that stays away is told of once
			r.deps.Log.Error(text)
		}
		last = text
	}
}

// poll looks at all folders once, and loads and unloads what has changed. It sends once, what
// went wrong in looking, before it loads.
func (r *Repository) poll(ctx context.Context, watch *steady, looked chan<- error) {
	ctx, end, ok := r.begin(ctx)
	if !ok {
		looked <- nil
		return
	}
	defer end()
	changed, err := r.look(ctx, watch)
	looked <- err
	if len(changed) > 0 {
		// what can't be loaded is logged and in the index
		_ = r.loadSet(ctx, changed, false)
	}
}

// look finds the folders that have changed, and unloads the models whose folders are gone.
func (r *Repository) look(ctx context.Context, watch *steady) (changed []Folder, err error) {
	folders, failed, err := r.find(ctx, "")
	there := map[key]bool{}
	for _, f := range folders {
		there[f.key()] = true
		if r.changed(f, watch) {
			changed = append(changed, f)
		}
	}
	watch.forget(func(k key) bool { return there[k] })
	if len(failed) == 0 {
		for _, k := range r.gone(there) {
			r.deps.Log.Info(fmt.Sprintf("model '%s' is not in the repository any more", k.name))
			if err := r.unload(ctx, k, false); err != nil {
				return changed, err
			}
			r.forget(k)
		}
	}
	return changed, err
}

// changed says that a folder is another than the one that was loaded last, or is being loaded,
// and is whole.
func (r *Repository) changed(f Folder, watch *steady) bool {
	l, err := lookAt(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false // it is being removed
	}
	still := watch.still(f.key(), l, time.Now())
	if r.pending.covers(f.key(), l) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[f.key()]
	return still && (e == nil || (e.fault == errDuplicate.Error()) != (len(f.Also) > 0) || !e.tried.same(l) || !e.wanted && !e.parked)
}

// gone are the models whose folders are not there any more.
func (r *Repository) gone(there map[key]bool) []key {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []key
	for k := range r.entries {
		if !there[k] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// forget drops the entry of a model that is gone, once nothing of it is left.
func (r *Repository) forget(k key) {
	r.update(func(entries map[key]*entry) {
		e := entries[k]
		if e == nil {
			return
		}
		for _, v := range e.versions {
			if v.model != nil {
				return
			}
		}
		delete(entries, k)
	})
}

// wait leaves out the folders that are being written, or waits for them: those whose
// files are younger than the time between two looks.
func (r *Repository) wait(ctx context.Context, folders []Folder) []Folder {
	interval := min(r.cfg.PollInterval, startLook)
	watch := newSteady(interval)
	var whole, rest []Folder
	for _, f := range folders {
		if l, err := lookAt(f.Dir); err == nil && !watch.still(f.key(), l, time.Now()) {
			rest = append(rest, f)
			continue
		}
		whole = append(whole, f)
	}
	if len(rest) == 0 {
		return whole
	}
	pause := time.NewTimer(interval)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return whole
	}
	for _, f := range rest {
		if l, err := lookAt(f.Dir); err == nil && watch.still(f.key(), l, time.Now()) {
			whole = append(whole, f)
		}
	}
	return whole
}

// startLook is how long the start waits for the second look at a folder that is young.
const startLook = time.Second
