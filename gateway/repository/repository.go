package repository

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// State is where a version stands.
type State uint8

// The states, in the words of the repository index.
const (
	Unknown State = iota
	Loading
	Ready
	Unloading
	Unavailable
)

// String is the name in the repository index.
func (s State) String() string {
	return [...]string{"UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"}[s]
}

// reasonUnloaded is the reason of versions that were unloaded on purpose.
const reasonUnloaded = "unloaded"

// Repository owns the models. Its methods may be called from any goroutine.
type Repository struct {
	cfg     Config
	deps    Deps
	scratch scratch

	view        atomic.Pointer[view]
	generations atomic.Uint64
	threads     *loadThreads
	pending     pendingLoads
	warmups     atomic.Uint64 // batches of warm-up so far
	turns       turns
	started     chan struct{}  // closed when LoadAll is over
	busy        sync.WaitGroup // loads, and versions on their way out; added to under mu

	mu      sync.Mutex
	entries map[key]*entry                  // mu
	joined  map[string]*registered          // mu; by path
	loads   map[int]context.CancelCauseFunc // mu; of loads that busy counts
	leaving map[int]context.CancelCauseFunc // mu; of versions on their way out
	calls   map[string]int                  // mu; load calls under way, by caller
	files   map[string]int64                // mu; bytes of files of load calls on disk, by caller
	serial  int                             // mu; of both
	closed  bool                            // mu
}

// key names a model, and where namespaces are on, its repository, too.
type key struct{ namespace, name string }

// String is the name as the original's log has it.
func (k key) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "::" + k.name
}

// entry is a model of the repository, whether it could be loaded or not.
type entry struct {
	fault    string  // why it has no versions; "" where it has
	wanted   bool    // it is to serve: it was loaded, and not unloaded since
	explicit bool    // it was loaded for its own sake, not for an ensemble
	parked   bool    // an ensemble that waits for its steps
	waits    *source // with what, where it could not be loaded
	tried    look    // the folder as it was when it was loaded last, with success or not
	source   *source // of what serves; nil: nothing does
	versions map[int64]*version
}

// version is one version of an entry.
type version struct {
	state  State
	reason string
	model  *Model // set when READY or UNLOADING
}

// view is what requests see. It is never changed once it is stored.
type view struct {
	models map[string]*served // by name
	spaces map[key]*served    // where namespaces are on
}

// served is one model in a view.
type served struct {
	latest    *Model            // the highest version that is READY; nil: none
	byVersion map[string]*Model // by decimal version; READY ones only
	versions  []string          // of byVersion, ascending by number
	known     []int64           // all versions, in whatever state, ascending
	fault     string            // why it has no versions at all
	unloaded  bool              // on purpose
	same      int               // models of that name in other namespaces
}

// New makes an empty repository; LoadAll fills it, Close empties it.
func New(cfg Config, deps Deps) *Repository {
	if cfg.LoadThreads < 1 {
		cfg.LoadThreads = defaultLoadThreads
	}
	if deps.Changed == nil {
		deps.Changed = func() {}
	}
	r := &Repository{cfg: cfg, deps: deps, threads: newLoadThreads(cfg.LoadThreads), entries: map[key]*entry{},
		loads: map[int]context.CancelCauseFunc{}, leaving: map[int]context.CancelCauseFunc{}, started: make(chan struct{}), scratch: scratch{parent: cfg.TempDir}}
	r.calls, r.files = map[string]int{}, map[string]int64{}
	r.turns.all, r.pending.all = map[key]*turn{}, map[string][]*pendingLoad{}
	r.view.Store(&view{models: map[string]*served{}})
	return r
}

// Acquire pins a version until its Release; version is what the client wrote, "" is
// the highest one that is ready. Errors are NotFound, InvalidArg (no number) or
// Unavailable (known, but not ready) in the original's words. It takes no lock and
// does not allocate.
// Source: ModelRepositoryManager::GetModel of the original; Unavailable in place of
// NotFound where a known model has no version ready is ours.
func (r *Repository) Acquire(ctx context.Context, name, version string) (*Model, error) {
	for {
		m, err := r.lookup(name, version)
		if err != nil {
			return nil, err
		}
		if m.pin() {
			return m, nil
		}
		// It was swapped out since; the next view has its successor, or says why not.
		if err := ctx.Err(); err != nil {
			return nil, infer.Errorf(infer.Cancelled, "request was cancelled: %w", err)
		}
	}
}

// Look says whether the version that Acquire would pin is decoupled, without a pin.
// Errors are Acquire's.
func (r *Repository) Look(name, version string) (decoupled bool, err error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return false, err
	}
	return m.decoupled, nil
}

func (r *Repository) lookup(name, version string) (*Model, error) {
	s, ok := r.view.Load().models[name]
	if !ok {
		return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' is not found", name)
	}
	if s.same > 1 {
		// Source: ModelRepositoryManager::GetModel of the original.
		return nil, infer.Errorf(infer.InvalidArg, "There are %d identifiers of model '%s' in global map, model namespace must be provided to resolve ambiguity.",
			s.same, name)
	}
	return s.find(name, version)
}

// find is the version that a request means.
func (s *served) find(name, version string) (*Model, error) {
	if s.fault != "" {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Request for unknown model: '%s' is not found: it could not be loaded", name)
	}
	if version == "" {
		if s.latest != nil {
			return s.latest, nil
		}
		if s.unloaded {
			return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' has no available versions", name)
		}
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Request for unknown model: '%s' has no available versions", name)
	}
	if m, ok := s.byVersion[version]; ok {
		return m, nil
	}
	n, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	if m, ok := s.byVersion[strconv.FormatInt(n, 10)]; ok { // "01", "+1"
		return m, nil
	}
	if slices.Contains(s.known, n) && !s.unloaded {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Request for unknown model: '%s' version %d is not at ready state", name, n)
	}
	if slices.Contains(s.known, n) {
		return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' version %d is not at ready state", name, n)
	}
	return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' version %d is not found", name, n)
}

func parseVersion(version string) (int64, error) {
	n, err := strconv.ParseInt(version, 10, 64)
	switch {
	case err != nil:
		return 0, infer.Errorf(infer.InvalidArg, "failed to get model version from specified version string '%s' (details: stol), "+
			"version should be an integral value > 0", version)
	case n < 0:
		return 0, infer.Errorf(infer.InvalidArg, "invalid model version specified '%s' , version should be an integral value > 0", version)
	}
	return n, nil
}

// update changes states under the lock and makes the view that follows from them.
func (r *Repository) update(change func(entries map[key]*entry)) {
	r.mu.Lock()
	change(r.entries)
	next := &view{models: make(map[string]*served, len(r.entries))}
	if r.cfg.Namespacing {
		next.spaces = make(map[key]*served, len(r.entries))
	}
	for k, e := range r.entries {
		s := e.serve()
		s.unloaded = s.unloaded && !r.closed
		if next.spaces != nil {
			next.spaces[k] = s
		}
		if other := next.models[k.name]; other != nil {
			// what was unloaded makes no name ambiguous
			switch {
			case s.unloaded:
				continue
			case !other.unloaded:
				s = &served{same: max(other.same, 1) + 1}
			}
		}
		next.models[k.name] = s
	}
	r.view.Store(next)
	r.mu.Unlock()
	r.deps.Changed()
}

// entryLocked is a model's entry, a new one where there was none.
func (r *Repository) entryLocked(k key) *entry {
	e := r.entries[k]
	if e == nil {
		e = &entry{versions: map[int64]*version{}}
		r.entries[k] = e
	}
	return e
}

func (e *entry) serve() *served {
	s := &served{byVersion: map[string]*Model{}, fault: e.fault, known: slices.Sorted(maps.Keys(e.versions)), unloaded: !e.wanted}
	for _, n := range s.known {
		if v := e.versions[n]; v.state == Ready {
			s.latest = v.model
			s.byVersion[v.model.versionText] = v.model
			s.versions = append(s.versions, v.model.versionText)
		}
	}
	return s
}

// begin counts a load, which Close stops and waits for. False: the repository is
// closed.
func (r *Repository) begin(ctx context.Context) (context.Context, func(), bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, false
	}
	ctx, end := r.countLocked(ctx, r.loads)
	return ctx, end, true
}

// countLocked counts something in busy, which ends with the ctx that it gives, at the
// latest when its cancel function in ends is called.
func (r *Repository) countLocked(ctx context.Context, ends map[int]context.CancelCauseFunc) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r.serial++
	n := r.serial
	ends[n] = cancel
	r.busy.Add(1)
	return ctx, func() {
		cancel(nil)
		r.mu.Lock()
		delete(ends, n)
		r.mu.Unlock()
		r.busy.Done()
	}
}

// Close unloads everything: loads are stopped, no model takes further requests, those
// that hold one are waited for until ctx ends, then schedulers are drained and the
// versions freed. It returns what went wrong, joined.
func (r *Repository) Close(ctx context.Context) error {
	var leaving []*version
	r.update(func(entries map[key]*entry) {
		r.closed = true
		for _, cancel := range r.loads {
			cancel(errStopping())
		}
		for _, e := range entries {
			for _, v := range e.versions {
				if v.state == Ready {
					v.state = Unloading
					leaving = append(leaving, v)
				}
			}
		}
	})
	errs := make([]error, len(leaving), len(leaving)+1)
	var wg sync.WaitGroup
	for i, v := range leaving {
		wg.Go(func() {
			errs[i] = r.retire(ctx, v.model)
			r.update(func(map[key]*entry) { v.state, v.reason, v.model = Unavailable, reasonUnloaded, nil })
		})
	}
	wg.Wait()
	stop := context.AfterFunc(ctx, r.hurry)
	errs = append(errs, r.settled(ctx))
	stop()
	return errors.Join(append(errs, r.scratch.close())...)
}

// settled waits for loads and for versions on their way out; when ctx ends first, as long as they
// may take to free what they have. What a worker does not end by then ends with the worker.
func (r *Repository) settled(ctx context.Context) error {
	over := make(chan struct{})
	go func() {
		r.busy.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
	}
	late := time.NewTimer(2 * unloadTime)
	defer late.Stop()
	select {
	case <-over:
		return nil
	case <-late.C:
		return errors.New("loads that could not be interrupted, or versions, are still being freed")
	}
}

func errStopping() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the server is shutting down")
}

// hurry cuts short what is on its way out.
func (r *Repository) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cancel := range r.leaving {
		cancel(errStopping())
	}
}
