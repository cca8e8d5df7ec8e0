// Package placements knows which sequences the endpoint pickers of a mesh have placed at this
// gateway, and tells the pickers: one that was started anew, or another one's beside it, learns
// from the gateways where sequences live (docs/0014-load-aware-routing.md).
package placements

import (
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// State is what became of a sequence.
type State uint8

// The states of a Change.
const (
	Lives State = iota
	Ended
	Lost // it ended, and not by its callers' doing
)

// Change says that a sequence began, or has ended.
type Change struct {
	infer.PlacedSequence
	State State
}

// maxPending bounds the changes that wait for one watcher. Each is some 100 bytes.
const maxPending = 1 << 16

// Registry is a gateway's table of placed sequences. The zero value is empty and ready. Its
// methods never block for long and may be called from any goroutine.
type Registry struct {
	mu       sync.Mutex
	live     map[string]placed     // mu; by key
	watchers map[*Watcher]struct{} // mu
}

// placed is a living sequence.
type placed struct {
	epoch uint64
	n     int // models that have it
}

// Began is schedule.Placements.Began.
func (r *Registry) Began(s infer.PlacedSequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.live[s.Key]
	switch {
	case p.n > 0 && p.epoch > s.Epoch: // a late START, in another model
		return
	case p.n > 0 && p.epoch == s.Epoch:
		p.n++
	default:
		p = placed{epoch: s.Epoch, n: 1}
		r.tell(Change{PlacedSequence: s, State: Lives})
	}
	if r.live == nil {
		r.live = map[string]placed{}
	}
	r.live[s.Key] = p
}

// Ended is schedule.Placements.Ended. A sequence that one of its models lost is lost.
func (r *Registry) Ended(s infer.PlacedSequence, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.live[s.Key]
	if !ok || p.epoch != s.Epoch {
		return
	}
	if p.n--; p.n > 0 && !lost {
		r.live[s.Key] = p
		return
	}
	delete(r.live, s.Key)
	state := Ended
	if lost {
		state = Lost
	}
	r.tell(Change{PlacedSequence: s, State: state})
}

// tell appends a change for every watcher. mu is held.
func (r *Registry) tell(c Change) {
	for w := range r.watchers {
		if len(w.pending) >= maxPending {
			w.behind, w.pending = true, nil
			delete(r.watchers, w)
		}
		if !w.behind {
			w.pending = append(w.pending, c)
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Watcher follows a Registry. Registry.Watch makes it; its owner calls Close in the end.
type Watcher struct {
	r       *Registry
	wake    chan struct{}
	pending []Change // r.mu
	behind  bool     // r.mu
}

// Watch begins with all sequences that live, as changes in no order; what happens from then
// on is the Watcher's.
func (r *Registry) Watch() (all []Change, w *Watcher) {
	w = &Watcher{r: r, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	all = make([]Change, 0, len(r.live))
	for key, p := range r.live {
		all = append(all, Change{PlacedSequence: infer.PlacedSequence{Key: key, Epoch: p.epoch}, State: Lives})
	}
	if r.watchers == nil {
		r.watchers = map[*Watcher]struct{}{}
	}
	r.watchers[w] = struct{}{}
	return all, w
}

// Changed is ready to be read when Next may have something to tell.
func (w *Watcher) Changed() <-chan struct{} { return w.wake }

// Next takes the changes since the last call, in their order; the caller owns them. It fails
// once the watcher has fallen behind, with ResourceExhausted.
func (w *Watcher) Next() ([]Change, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.behind {
		return nil, infer.Errorf(infer.ResourceExhausted, "more than %d changes of sequences were not read: ask anew", maxPending)
	}
	changes := w.pending
	w.pending = nil
	return changes, nil
}

// Close ends the watching.
func (w *Watcher) Close() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	delete(w.r.watchers, w)
}
