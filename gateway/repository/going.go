package repository

// Going is what a version has going on at a moment.
type Going struct {
	Waiting  int // requests that wait for an instance
	Inflight int // requests that hold the version, waiting ones too
	Busy     int // instances that have a batch; 0 for an ensemble
}

// Each calls f for every version that serves; f must return soon.
func (r *Repository) Each(f func(*Model)) {
	for _, s := range r.view.Load().models {
		for _, m := range s.byVersion {
			f(m)
		}
	}
	for k, s := range r.view.Load().spaces {
		if other := r.view.Load().models[k.name]; other == nil || other.same < 2 {
			continue // seen by its name
		}
		for _, m := range s.byVersion {
			f(m)
		}
	}
}

// Stateful says that requests of the model belong to sequences: its own, or those of a
// step of the ensemble.
func (r *Repository) Stateful(m *Model) bool { return r.stateful(m, 0) }

func (r *Repository) stateful(m *Model, depth int) bool {
	if m.Config.GetSequenceBatching() != nil {
		return true
	}
	if depth > deepestStep {
		return false
	}
	for _, n := range m.needs {
		if step := r.view.Load().step(m.namespace, n); step != nil && r.stateful(step, depth+1) {
			return true
		}
	}
	return false
}

// Going counts what m has going on.
func (m *Model) Going() Going {
	return Going{Inflight: int(max(m.pins.Load(), 0)), Waiting: m.scheduler.Pending(), Busy: m.scheduler.Busy()}
}
