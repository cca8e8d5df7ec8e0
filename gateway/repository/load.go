package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// codeWords begin the reasons in the index.
// Source: Status::AsString of the original.
var codeWords = map[infer.Code]string{infer.Unknown: "Unknown", infer.InvalidArg: "Invalid argument", infer.AlreadyExists: "Already exists",
	infer.Cancelled: "Cancelled", infer.NotFound: "Not found", infer.Internal: "Internal", infer.Unsupported: "Unsupported",
	infer.Unavailable: "Unavailable"}

// errDuplicate has the original's reason for models that are in two repositories, word
// for word.
var errDuplicate = errors.New("model appears in two or more repositories")

// reason is an error as the index shows it.
func reason(err error) string {
	if errors.Is(err, errDuplicate) {
		return errDuplicate.Error()
	}
	word, ok := codeWords[infer.CodeOf(err)]
	if !ok {
		word = infer.CodeOf(err).String()
	}
	return word + ": " + err.Error()
}

// LoadAll loads the models that the control mode wants at the start, LoadThreads
// versions at a time: all of the repositories, or with Explicit those of Startup. What
// can't be loaded becomes UNAVAILABLE and is in the joined error that comes back; the
// rest serves. It is called once; ctx stops it.
func (r *Repository) LoadAll(ctx context.Context) error {
	defer close(r.started)
	ctx, end, ok := r.begin(ctx)
	if !ok {
		return errStopping()
	}
	defer end()
	r.scratch.clean()
	if r.cfg.Mode == Explicit && !slices.Equal(r.cfg.Startup, []string{"*"}) {
		return r.loadNamed(ctx, r.cfg.Startup)
	}
	folders, _, err := r.find(ctx, "")
	if err != nil { // no model's entry has it
		r.deps.Log.Error(err.Error())
	}
	if r.cfg.Mode == Poll {
		folders = r.wait(ctx, folders)
	}
	return errors.Join(err, r.loadSet(ctx, folders, r.cfg.Mode == Explicit))
}

// loadNamed loads the models of --load-model.
func (r *Repository) loadNamed(ctx context.Context, names []string) error {
	var folders []Folder
	var errs []error
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if name == "" { // which would be all to find
			errs = append(errs, &LoadError{Name: name, Err: errNoModel})
			continue
		}
		found, _, err := r.find(ctx, name)
		if len(found) == 0 {
			err = errors.Join(err, &LoadError{Name: name, Err: errNoModel})
		}
		errs = append(errs, err)
		folders = append(folders, found...)
	}
	return errors.Join(append(errs, r.loadSet(ctx, folders, true))...)
}

// loadSet loads models at the same time, ensembles after those that they may need.
func (r *Repository) loadSet(ctx context.Context, folders []Folder, explicit bool) error {
	var errs []error
	var mu sync.Mutex
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, plainLoad(err))
	}
	r.update(func(map[key]*entry) {
		for _, f := range folders {
			e := r.entryLocked(f.key())
			e.wanted, e.explicit = true, e.explicit || explicit
		}
	})
	var wg sync.WaitGroup
	var ensembles []Folder
	for _, f := range folders {
		if f.ensemble() {
			ensembles = append(ensembles, f)
			continue
		}
		wg.Go(func() { note(r.inTurn(ctx, f, &Override{}, nil)) })
	}
	wg.Wait()
	for _, f := range inOrder(ensembles) {
		note(r.inTurn(ctx, f, &Override{}, nil))
	}
	for _, f := range folders {
		r.reconsiderSoon(ctx, f.Name)
	}
	return errors.Join(errs...)
}

// plainLoad is a load's error as the start reports it: one line for each version.
func plainLoad(err error) error {
	var load *LoadError
	if !errors.As(err, &load) {
		return err
	}
	if load.Err != nil {
		return fmt.Errorf("failed to load model '%s': %w", load.Name, load.Err)
	}
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(load.Versions)) {
		errs = append(errs, fmt.Errorf("failed to load '%s' version %d: %w", load.Name, n, load.Versions[n]))
	}
	return errors.Join(errs...)
}

// retireLater retires models that are in no view any more, in the background; Close
// waits for it. done is told of each that is gone.
func (r *Repository) retireLater(ctx context.Context, models []*Model, done func(*Model)) {
	if len(models) == 0 {
		return
	}
	r.mu.Lock()
	ctx, end := r.countLocked(context.WithoutCancel(ctx), r.leaving)
	r.mu.Unlock()
	for _, m := range models {
		m.retire()
	}
	go func() {
		defer end()
		for _, m := range models {
			if err := r.retire(ctx, m); err != nil {
				r.deps.Log.Error(err.Error())
			}
			if done != nil {
				done(m)
			}
		}
	}()
}

// unloaded notes that a version is gone, unless another has its place.
func (r *Repository) unloaded(k key) func(*Model) {
	return func(m *Model) {
		r.update(func(entries map[key]*entry) {
			e := entries[k]
			if e == nil {
				return
			}
			if v := e.versions[m.Version]; v != nil && v.model == m {
				v.state, v.reason, v.model = Unavailable, reasonUnloaded, nil
			}
		})
	}
}

// settleTime is how long a load call waits for the requests that the old versions have.
const settleTime = 5 * time.Second

// settle waits until the requests that hold models are answered, so that what a client
// hears after a load call is of the new versions alone.
func settle(ctx context.Context, models []*Model) {
	late := time.NewTimer(settleTime)
	defer late.Stop()
	for _, m := range models {
		select {
		case <-m.drained:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// retire ends a version that is in no view any more: it waits for the requests that
// hold it, drains its scheduler, and frees it. When ctx ends first, what waits fails.
func (r *Repository) retire(ctx context.Context, m *Model) error {
	m.retire()
	m.lease.leave(ctx)
	defer m.lease.give(ctx)
	select {
	case <-m.drained:
	case <-ctx.Done():
	}
	// Requests that still wait for an instance end here; those whose answers are being
	// sent need nothing of the version but memory that is counted on its own.
	errs := []error{m.scheduler.Drain(ctx), r.free(ctx, m)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unloading '%s' version %d: %w", m.Name, m.Version, err)
	}
	r.deps.Log.Info(fmt.Sprintf("successfully unloaded '%s' version %d", m.Name, m.Version))
	return nil
}

// unloadTime is how long a worker may take to free a version when the time to drain is
// over already.
const unloadTime = 5 * time.Second

func (r *Repository) free(ctx context.Context, m *Model) error {
	m.forget(ctx, r)
	m.stopWarming()
	if m.stats != nil {
		m.stats.Close()
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), unloadTime)
		defer cancel()
	}
	if m.loaded == nil { // an ensemble
		return nil
	}
	return m.loaded.Unload(ctx)
}
