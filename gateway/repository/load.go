package repository

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// LoadAll loads every model of the repositories, LoadThreads versions at a time. What
// can't be loaded becomes UNAVAILABLE and is in the joined error that comes back; the
// rest serves. It is called once.
func (r *Repository) LoadAll(ctx context.Context) error {
	folders, err := Find(r.cfg.Paths)
	errs := []error{err}
	var mu sync.Mutex
	var wg sync.WaitGroup
	r.update(func(entries map[string]*entry) {
		for _, f := range folders {
			entries[f.Name] = &entry{versions: map[int64]*version{}}
		}
	})
	for _, f := range folders {
		wg.Go(func() {
			if err := r.loadModel(ctx, f); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// loadModel reads the folder and loads the versions that its policy chooses.
func (r *Repository) loadModel(ctx context.Context, f Folder) error {
	plan, err := r.open(ctx, f)
	if err != nil {
		r.deps.Log.Error(fmt.Sprintf("failed to load model '%s': %s", f.Name, err))
		r.update(func(entries map[string]*entry) {
			e := entries[f.Name]
			e.fault = reason(err)
			// Versions that would have been served are shown with the reason.
			for _, n := range plan.Versions {
				e.versions[n] = &version{state: Unavailable, reason: e.fault}
			}
		})
		return fmt.Errorf("failed to load model '%s': %w", f.Name, err)
	}
	for _, n := range plan.Absent {
		r.deps.Log.Error(fmt.Sprintf("version %d is specified for model '%s', but the version directory is not present", n, f.Name))
	}
	r.update(func(entries map[string]*entry) {
		for _, n := range plan.Versions {
			entries[f.Name].versions[n] = &version{state: Loading}
		}
	})
	errs := make([]error, len(plan.Versions))
	var wg sync.WaitGroup
	for i, n := range plan.Versions {
		wg.Go(func() { errs[i] = r.loadVersion(ctx, plan, n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// open plans a model while it holds a token: reading many configs at once would only
// move the disk's head.
func (r *Repository) open(ctx context.Context, f Folder) (*Plan, error) {
	if err := r.take(ctx); err != nil {
		return &Plan{}, err
	}
	defer r.give()
	return Open(f, &r.cfg, r.deps.Workers)
}

func (r *Repository) take(ctx context.Context) error {
	select {
	case r.load <- struct{}{}:
		return nil
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "loading was stopped: %w", context.Cause(ctx))
	}
}

func (r *Repository) give() { <-r.load }

// loadVersion builds a version, swaps it in, and retires the one that it replaces.
func (r *Repository) loadVersion(ctx context.Context, plan *Plan, n int64) error {
	name := plan.Folder.Name
	start := time.Now()
	m, err := r.tryBuild(ctx, plan, n)
	if err != nil {
		r.deps.Log.Error(fmt.Sprintf("failed to load '%s' version %d: %s", name, n, reason(err)))
		r.update(func(entries map[string]*entry) {
			v := entries[name].versions[n]
			if v.model == nil { // a reload that fails leaves the old one serving
				v.state = Unavailable
			}
			v.reason = reason(err)
		})
		return fmt.Errorf("failed to load '%s' version %d: %w", name, n, err)
	}
	var old *Model
	swapped := false
	r.update(func(entries map[string]*entry) {
		if r.closed {
			return
		}
		v := entries[name].versions[n]
		old, swapped = v.model, true
		*v = version{state: Ready, model: m}
	})
	if !swapped {
		err := infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the server is shutting down")
		return errors.Join(fmt.Errorf("failed to load '%s' version %d: %w", name, n, err), r.retire(ctx, m))
	}
	if m.stats != nil {
		m.stats.SetLoadDuration(time.Since(start))
	}
	all, _ := m.Instances()
	r.deps.Log.Info(fmt.Sprintf("successfully loaded '%s' version %d", name, n), slog.Int("instances", all),
		slog.Duration("took", time.Since(start)))
	if old == nil {
		return nil
	}
	return r.retire(ctx, old)
}

// retire ends a version that is in no view any more: it waits for the requests that
// hold it, drains its scheduler, and frees it. When ctx ends first, what waits fails.
func (r *Repository) retire(ctx context.Context, m *Model) error {
	m.retire()
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
	if m.stats != nil {
		m.stats.Close()
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), unloadTime)
		defer cancel()
	}
	return m.loaded.Unload(ctx)
}
