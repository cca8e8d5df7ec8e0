package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// registered is a repository that came while the server runs.
type registered struct {
	path  string            // as it was given; the namespace of its models, where those are on
	names map[string]string // folder → name of its model, where that is another
	seen  map[key]bool      // models that were found there
}

// Register takes in a repository while the server runs: load calls find its models. names
// gives the models of folders other names than theirs; such a name may be any text, for
// it is never a path. Only folders are models here, no links to folders: what lies there
// may come from anybody. Errors, in the original's words: Unavailable before LoadAll is
// over, when nothing could be loaded from it, Unsupported in another control mode,
// InvalidArg where there is no such folder, AlreadyExists where the repository is known, or
// another one has a model of the name.
// Source: ModelRepositoryManager::RegisterModelRepository of the original.
func (r *Repository) Register(path string, names map[string]string) error {
	if err := r.running(); err != nil {
		return err
	}
	if r.cfg.Mode != Explicit {
		return infer.Errorf(infer.Unsupported, "repository registration is not allowed if model control mode is not EXPLICIT")
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return infer.Errorf(infer.InvalidArg, "failed to register '%s', repository not found", path)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joined[path] != nil || slices.Contains(r.cfg.Paths, path) {
		return infer.Errorf(infer.AlreadyExists, "model repository '%s' has already been registered", path)
	}
	for _, name := range names {
		if r.mappedLocked(name) != nil {
			return infer.Errorf(infer.AlreadyExists, "failed to register '%s', there is a conflicting mapping for '%s'", name, name)
		}
	}
	if r.joined == nil {
		r.joined = map[string]*registered{}
	}
	r.joined[path] = &registered{path: path, names: names, seen: map[key]bool{}}
	return nil
}

// Unregister takes all models of a registered repository out of service and forgets it.
// It returns when their memory is free, or ctx ends; then they go all the same. Errors:
// InvalidArg where there is no such repository, Unavailable, Cancelled.
func (r *Repository) Unregister(ctx context.Context, path string) error {
	if err := r.controlled(); err != nil {
		return err
	}
	return r.operate(ctx, func(ctx context.Context) error {
		r.mu.Lock()
		was := r.joined[path]
		delete(r.joined, path)
		var keys []key
		if was != nil {
			for k := range was.seen {
				if r.entries[k].under(path) {
					keys = append(keys, k)
				}
			}
		}
		r.mu.Unlock()
		if was == nil {
			return infer.Errorf(infer.InvalidArg, "failed to unregister '%s', repository not found", path)
		}
		slices.SortFunc(keys, compareKeys)
		var errs []error
		for _, k := range keys {
			errs = append(errs, r.unload(ctx, k, false))
		}
		errs = append(errs, r.left(ctx, keys))
		r.update(func(entries map[key]*entry) {
			for _, k := range keys {
				if !r.elsewhereLocked(k) {
					delete(entries, k)
				}
			}
		})
		return errors.Join(errs...)
	})
}

// under says that a model was loaded from a repository, or that nothing of it serves.
func (e *entry) under(path string) bool {
	if e == nil || e.source == nil {
		return e != nil
	}
	rest, ok := strings.CutPrefix(e.source.dir, path)
	return ok && strings.HasPrefix(rest, string(filepath.Separator))
}

// elsewhereLocked says that a model belongs to another repository too, or serves again.
func (r *Repository) elsewhereLocked(k key) bool {
	for _, j := range r.joined {
		if j.seen[k] {
			return true
		}
	}
	e := r.entries[k]
	return e == nil || e.wanted || e.parked
}

// leftEvery is how often it is looked whether models are gone.
const leftEvery = 5 * time.Millisecond

// left waits until no version of the models is on its way out any more.
func (r *Repository) left(ctx context.Context, keys []key) error {
	tick := time.NewTicker(leftEvery)
	defer tick.Stop()
	for {
		if !r.leave(keys) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return infer.Errorf(infer.Cancelled, "the server is shutting down: %w", context.Cause(ctx))
		}
	}
}

// leave says that versions of the models are on their way out.
func (r *Repository) leave(keys []key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		if e := r.entries[k]; e != nil {
			for _, v := range e.versions {
				if v.state == Unloading {
					return true
				}
			}
		}
	}
	return false
}

// mappedLocked is the registered repository that gives a folder this name; nil: none does.
func (r *Repository) mappedLocked(name string) *registered {
	for _, j := range r.joined {
		for _, n := range j.names {
			if n == name {
				return j
			}
		}
	}
	return nil
}

// joinedFolders lists the model folders of registered repositories, or those of one
// model. A name that was given to a folder means that folder alone.
func (r *Repository) joinedFolders(name string) (folders []Folder, mapped bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.joined) == 0 {
		return nil, false, nil
	}
	all := make([]*registered, 0, len(r.joined))
	if j := r.mappedLocked(name); name != "" && j != nil {
		all, mapped = append(all, j), true
	} else {
		for _, j := range r.joined {
			all = append(all, j)
		}
		slices.SortFunc(all, func(a, b *registered) int { return strings.Compare(a.path, b.path) })
	}
	var errs []error
	for _, j := range all {
		found, err := r.listJoined(j)
		errs = append(errs, err)
		for _, f := range found {
			if name != "" && f.Name != name {
				continue
			}
			j.seen[f.key()] = true
			folders = merge(folders, f)
		}
	}
	return folders, mapped, errors.Join(errs...)
}

func (r *Repository) listJoined(j *registered) ([]Folder, error) {
	entries, err := os.ReadDir(j.path)
	if err != nil {
		return nil, fmt.Errorf("failed to poll model repository '%s': %w", j.path, plain(err))
	}
	var folders []Folder
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		f := Folder{Name: e.Name(), Dir: filepath.Join(j.path, e.Name()), ConfigName: r.cfg.ConfigName}
		if n, ok := j.names[e.Name()]; ok {
			f.Name, f.Renamed = n, true
		}
		if r.cfg.Namespacing {
			f.Namespace = j.path
		}
		folders = append(folders, f)
	}
	return folders, nil
}
