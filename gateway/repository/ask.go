package repository

import (
	"context"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// ServerReadyNow is Ready, and asks the models that say themselves whether they are ready, all at once.
func (r *Repository) ServerReadyNow(ctx context.Context) bool {
	if !r.Ready() {
		return false
	}
	if !r.cfg.StrictReadiness {
		return true
	}
	var asked askedModels
	r.mu.Lock()
	for k, e := range r.entries {
		for _, v := range e.versions {
			if e.wanted && v.state == Ready {
				r.serves(k.namespace, v.model, 0, asked.add)
			}
		}
	}
	r.mu.Unlock()
	return asked.ready(ctx) == nil
}

// ModelReadyNow is ModelReady, and asks the models that say themselves whether they are ready: the
// version, or those that an ensemble needs.
func (r *Repository) ModelReadyNow(ctx context.Context, name, version string) (bool, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return false, err
	}
	var asked askedModels
	if !r.serves(m.namespace, m, 0, func(m *Model) bool { return m.Ready() && asked.add(m) }) {
		return false, nil
	}
	if err := asked.ready(ctx); err != nil && infer.CodeOf(err) == infer.Cancelled {
		return false, err
	} else if err != nil {
		return false, nil // the worker has logged why
	}
	return true, nil
}

// askedModels are models that are to be asked, once each.
type askedModels struct{ all map[*Model]struct{} }

// add takes a model where it is to be asked; it says true.
func (a *askedModels) add(m *Model) bool {
	if m.loaded != nil && m.loaded.AsksReady() {
		if a.all == nil {
			a.all = map[*Model]struct{}{}
		}
		a.all[m] = struct{}{}
	}
	return true
}

// ready asks them all at once; nil: all are.
func (a *askedModels) ready(ctx context.Context) error {
	var asking sync.WaitGroup
	answers := make(chan error, len(a.all))
	for m := range a.all {
		asking.Go(func() { answers <- m.loaded.Ready(ctx) })
	}
	asking.Wait()
	close(answers)
	for err := range answers {
		if err != nil {
			return err
		}
	}
	return nil
}
