package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serve/sluice/infer"
)

// make makes a version whole: completed, loaded, warmed up, with a scheduler. Nothing of it is
// left when it fails, once it returns. The parameters are threadWork's.
func (c *change) make(ctx, undo context.Context, fail context.CancelCauseFunc, n int64) (*Model, error) {
	r, plan := c.r, c.plan
	v, err := plan.Version(ctx, n, false)
	if err != nil {
		return nil, err
	}
	for _, note := range append(plan.Notes, v.Notes...) {
		r.deps.Log.Debug(fmt.Sprintf("model '%s' version %d: completed %s", plan.Folder.Name, n, note))
	}
	ensemble := len(Needs(v.Spec.Config)) > 0
	if len(v.Spec.Instances) == 0 && !ensemble {
		return nil, infer.Errorf(infer.InvalidArg, "must specify one or more 'instance group's for %s", plan.Folder.Name)
	}
	if ensemble {
		if err := r.settleEnsemble(v); err != nil {
			return nil, err
		}
	}
	m := newModel(v, r.deps.Changed)
	m.workerWait = r.cfg.workerWait()
	if err := r.generate(ctx, m, &v.Spec); err != nil {
		return nil, err
	}
	if ensemble {
		m.ready.Store(1) // as long as its steps are
		v.Spec.Instances = nil
	} else if err := r.loadWorker(ctx, m, v, c.likes[n]); err != nil {
		return nil, err
	}
	if r.deps.NewStats != nil {
		m.stats = r.deps.NewStats(m)
	}
	executors := make([]infer.Executor, len(v.Spec.Instances))
	for i := range executors {
		executors[i] = m.loaded.Executor(i)
	}
	if err := r.warmupOf(m, v.samples).load(ctx, fail, executors); err != nil {
		return nil, errors.Join(err, r.free(undo, m))
	}
	s, err := r.deps.NewScheduler(m, executors)
	if err != nil {
		return nil, errors.Join(err, r.free(undo, m))
	}
	m.executors = executors
	m.setScheduler(s)
	r.keepWarm(ctx, m, v.samples, executors)
	return m, nil
}

// loadWorker loads a version into the workers; where it differs from a loaded one in
// its instances alone, the model is not read again.
func (r *Repository) loadWorker(ctx context.Context, m *Model, v *VersionPlan, like *Model) (err error) {
	if err := r.checkGPUs(v); err != nil {
		return err
	}
	v.Spec.Changed = m.instanceChanged
	if like != nil {
		v.Spec.Like = like.loaded
	}
	m.loaded, err = r.deps.Workers.Load(ctx, v.Spec)
	return err
}

// checkGPUs refuses a load onto a GPU whose memory is used beyond its limit.
// Source: --model-load-gpu-limit of the original.
func (r *Repository) checkGPUs(v *VersionPlan) error {
	if r.deps.GPUMemory == nil {
		return nil
	}
	for _, i := range v.Spec.Instances {
		limit, ok := r.cfg.GPULimits[i.Device]
		if !i.GPU || !ok {
			continue
		}
		used, total, known := r.deps.GPUMemory(i.Device)
		if known && float64(used) > limit*float64(total) {
			return infer.Errorf(infer.Unavailable, "can not create model '%s': memory limit set for GPU %d has exceeded, model loading is rejected.", i.Name, i.Device)
		}
	}
	return nil
}
