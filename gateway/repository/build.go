package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serve/sluice/infer"
)

// tryBuild builds with the configured number of further tries.
func (r *Repository) tryBuild(ctx context.Context, plan *Plan, n int64) (m *Model, err error) {
	if err := r.take(ctx); err != nil {
		return nil, err
	}
	defer r.give()
	for try := range 1 + max(0, r.cfg.LoadRetries) {
		if try > 0 {
			r.deps.Log.Warn(fmt.Sprintf("loading '%s' version %d again: %s", plan.Folder.Name, n, err))
		}
		if m, err = r.build(ctx, plan, n); err == nil || ctx.Err() != nil {
			return m, err
		}
	}
	return nil, err
}

// build makes a version whole: completed, loaded, with a scheduler. Nothing of it is
// left when it fails.
func (r *Repository) build(ctx context.Context, plan *Plan, n int64) (*Model, error) {
	v, err := plan.Version(ctx, n, false)
	if err != nil {
		return nil, err
	}
	for _, note := range append(plan.Notes, v.Notes...) {
		r.deps.Log.Debug(fmt.Sprintf("model '%s' version %d: completed %s", plan.Folder.Name, n, note))
	}
	if len(v.Spec.Instances) == 0 {
		return nil, infer.Errorf(infer.InvalidArg, "must specify one or more 'instance group's for %s", plan.Folder.Name)
	}
	m := newModel(v, r.deps.Changed)
	v.Spec.Changed = m.instanceChanged
	if m.loaded, err = r.deps.Workers.Load(ctx, v.Spec); err != nil {
		return nil, err
	}
	if r.deps.NewStats != nil {
		m.stats = r.deps.NewStats(m)
	}
	executors := make([]infer.Executor, len(v.Spec.Instances))
	for i := range executors {
		executors[i] = m.loaded.Executor(i)
	}
	s, err := r.deps.NewScheduler(m, executors)
	if err != nil {
		return nil, errors.Join(err, r.free(ctx, m))
	}
	m.setScheduler(s)
	return m, nil
}
