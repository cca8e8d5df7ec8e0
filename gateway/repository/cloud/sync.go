package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sync brings the copies up to date, those of one model where model is not "". It
// gives the names of the models that were wanted and could not be had, joined; the
// others are in the view. busy is held.
func (r *repository) sync(ctx context.Context, model string) error {
	release, _, err := r.objects.lock(false)
	if err != nil {
		return err
	}
	found, err := r.list(ctx, model)
	switch {
	case err != nil:
		err = r.offline(ctx, model, err)
	case found.keys == 0 && model == "" && len(r.manifest.Models) == 0: // more likely a slip than a repository
		err = fmt.Errorf("failed to poll model repository '%s': there is nothing under this path", r.location)
	default:
		r.online()
		err = r.apply(ctx, model, found)
	}
	if err = errors.Join(err, release()); ctx.Err() != nil {
		return err
	}
	return errors.Join(err, r.sweep(), r.collect())
}

// list asks the cloud what there is. After a failure the bucket is opened anew, with the
// credentials of then; one that was opened before is, even if it says that they are not
// good any more.
func (r *repository) list(ctx context.Context, model string) (found *listing, err error) {
	old := r.open != nil
	try := func() error {
		found, err = r.listOnce(ctx, model)
		return err
	}
	if err = again(ctx, r.cfg.Tries, r.cfg.Pause, try); err != nil && old && !passing(ctx, err) && ctx.Err() == nil {
		err = again(ctx, r.cfg.Tries, r.cfg.Pause, try)
	}
	return found, err
}

func (r *repository) listOnce(ctx context.Context, model string) (*listing, error) {
	if r.open == nil {
		credential, err := FindCredential(r.path, r.location.Scheme, r.cfg.Env)
		if err != nil {
			return nil, err
		}
		if r.open, err = r.cfg.Open(ctx, r.location, credential); err != nil {
			return nil, err
		}
	}
	found, err := r.open.list(ctx, r.location, model, r.cfg.Stall)
	if err != nil {
		r.closeBucket()
	}
	return found, err
}

func (r *repository) online() {
	if r.away {
		r.away = false
		r.log.Info(fmt.Sprintf("%s can be reached again", r.location))
	}
}

// apply makes the view what was listed.
func (r *repository) apply(ctx context.Context, model string, found *listing) error {
	var errs []error
	names := slices.Sorted(maps.Keys(found.models))
	for _, name := range slices.Sorted(maps.Keys(found.faults)) {
		errs = append(errs, fmt.Errorf("model '%s' of %s: %w", name, r.location, found.faults[name]))
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
	}
	begin, fetched := time.Now(), &progress{}
	for _, name := range names {
		if err := r.update(ctx, name, found.models[name], fetched); err != nil {
			errs = append(errs, fmt.Errorf("model '%s' of %s was not copied: %w", name, r.location, err))
		}
		if ctx.Err() != nil {
			return errors.Join(errs...)
		}
	}
	// What was listed and failed keeps its last whole copy.
	for _, name := range r.known() {
		_, listed := found.models[name]
		_, faulty := found.faults[name]
		if !listed && !faulty && (model == "" || name == model) {
			errs = append(errs, r.hide(name))
		}
	}
	errs = append(errs, r.save())
	if n, bytes := fetched.read(); n > 0 {
		r.log.Info(fmt.Sprintf("copied %d files of %s", n, r.location), "bytes", bytes, "took", time.Since(begin).Round(time.Millisecond))
	}
	return errors.Join(errs...)
}

// known are the models of the view and of the manifest.
func (r *repository) known() []string {
	all := r.names()
	for name := range r.manifest.Models {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// update fetches what of a model is not in the cache and shows it. The manifest is
// saved after a model that took fetching, so that a crash does not lose it.
func (r *repository) update(ctx context.Context, name string, listed []object, fetched *progress) error {
	before := map[string]object{}
	for _, o := range r.manifest.Models[name].Objects {
		before[o.Path] = o
	}
	record := modelRecord{Objects: slices.Clone(listed), Synced: time.Now().UTC()}
	slices.SortFunc(record.Objects, func(a, b object) int { return strings.Compare(a.Path, b.Path) })
	missing := make([]bool, len(record.Objects))
	err := parallel(ctx, len(record.Objects), r.cfg.Hashers, func(ctx context.Context, i int) error {
		o := &record.Objects[i]
		if o.folder() {
			return nil
		}
		if old, ok := before[o.Path]; ok && old.Version == o.Version && old.Size == o.Size {
			whole, err := r.objects.have(ctx, old.SHA256, old.Size)
			if err != nil {
				r.log.Warn(fmt.Sprintf("'%s' of model '%s' of %s is fetched again", o.Path, name, r.location), "error", err)
			}
			if whole {
				o.SHA256 = old.SHA256
				return nil
			}
		}
		missing[i] = true
		return nil
	})
	if err != nil {
		return err
	}
	var todo []*object
	var size int64
	for i := range missing {
		if missing[i] {
			todo = append(todo, &record.Objects[i])
			size += record.Objects[i].Size
		}
	}
	if err := r.room(size); err != nil {
		return err
	}
	if err := r.fetchAll(ctx, name, todo, fetched); err != nil {
		return err
	}
	r.manifest.Models[name] = record
	if err := r.show(name, record); err != nil || len(todo) == 0 {
		return err
	}
	return r.save()
}

func (r *repository) fetchAll(ctx context.Context, model string, todo []*object, fetched *progress) error {
	return parallel(ctx, len(todo), r.cfg.Fetchers, func(ctx context.Context, i int) error {
		o := todo[i]
		path, sum, err := r.open.fetch(ctx, r.location.dir()+model+"/"+o.Path, o, r.cfg, filepath.Join(r.dir, "tmp"))
		if err != nil {
			return err
		}
		if err := r.objects.add(path, sum); err != nil {
			return errors.Join(err, os.Remove(path))
		}
		o.SHA256 = sum
		fetched.add(o.Size)
		return nil
	})
}

// offline is what happens when the cloud can't be asked: what the view shows stays, and
// what was there when it was last asked comes into it if its copies are whole. Without
// any of that, cause is the error.
func (r *repository) offline(ctx context.Context, model string, cause error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var errs []error
	served, oldest := 0, time.Now()
	for _, name := range r.known() {
		if model != "" && name != model {
			continue
		}
		record := r.manifest.Models[name]
		if err := r.whole(ctx, name, record); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := r.show(name, record); err != nil {
			errs = append(errs, err)
			continue
		}
		served++
		if record.Synced.Before(oldest) {
			oldest = record.Synced
		}
	}
	cause = fmt.Errorf("failed to poll model repository '%s': %w", r.location, cause)
	if served == 0 {
		return errors.Join(append([]error{cause}, errs...)...)
	}
	if !r.away {
		r.away = true
		r.log.Warn(fmt.Sprintf("%s can't be reached; its copies in the cache were checked and are served", r.location),
			"models", served, "of", oldest.Format(time.RFC3339), "error", cause)
	}
	return errors.Join(errs...)
}

// whole checks the copies of a model that can't be fetched again.
func (r *repository) whole(ctx context.Context, name string, record modelRecord) error {
	if _, shown := r.trees[name]; shown {
		return nil
	}
	return parallel(ctx, len(record.Objects), r.cfg.Hashers, func(ctx context.Context, i int) error {
		o := &record.Objects[i]
		if o.folder() {
			return nil
		}
		ok, err := r.objects.have(ctx, o.SHA256, o.Size)
		if err == nil && !ok {
			err = errors.New("it is gone from the cache")
		}
		if err != nil {
			return fmt.Errorf("model '%s' of %s can't be served from the cache: '%s': %w", name, r.location, o.Path, err)
		}
		return nil
	})
}
