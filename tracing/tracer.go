package tracing

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// The bounds of what waits for the writer.
const (
	maxQueue   = 1024     // sampled requests
	maxTensors = 64 << 20 // bytes of their tensors' copies
	maxRoom    = 16 << 20 // of one of them; tensors beyond are named without data
)

// Deps are a Tracer's collaborators.
type Deps struct {
	Log *slog.Logger
	// Dropped is told how many traces were lost; nil: nobody counts.
	Dropped func(n int)
	// Spans takes sampled calls in mode opentelemetry; nil: the mode is triton.
	Spans Spans
}

// Tracer is the trace extension of one gateway. Make it with New; Run writes.
type Tracer struct {
	deps  Deps
	flags Settings // what the flags say; never changes
	on    atomic.Bool
	view  atomic.Pointer[view]
	ids   atomic.Uint64
	queue chan *infer.TraceFamily
	kick  chan struct{} // an epoch was retired, or a trace lost
	lost  atomic.Uint64
	sink  func(*infer.TraceFamily) // of spans

	budget atomic.Int64 // bytes of tensors that may still be copied

	mu sync.Mutex // of updates
}

// view is what is in force; it is replaced, never changed.
type view struct {
	global *epoch
	models map[string]*epoch // those with settings of their own
}

func (v *view) of(model string) *epoch {
	if e, ok := v.models[model]; ok {
		return e
	}
	return v.global
}

func (v *view) samples() bool {
	if v.global.samples() {
		return true
	}
	for _, e := range v.models {
		if e.samples() {
			return true
		}
	}
	return false
}

// epoch is the time in which one set of settings is in force. A trace belongs to the
// epoch in which it was sampled, also when it ends after it.
type epoch struct {
	settings Settings
	own      field       // set by the API; the others follow what stands above
	live     bool        // may sample
	over     atomic.Bool // replaced by an update
	group    group       // Run's alone

	mu      sync.Mutex
	sampler sampler // mu
}

func newEpoch(s Settings, own field) *epoch {
	return &epoch{settings: s, own: own, live: s.samples(), sampler: sampler{rate: s.Rate, left: s.Count}}
}

// samples says that requests may be sampled, whoever decides.
func (e *epoch) samples() bool {
	return e.live && (e.settings.Export != nil || e.current().Count != 0)
}

// current are the settings with what is left of the count.
func (e *epoch) current() Settings {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.settings
	s.Count = e.sampler.left
	return s
}

func (e *epoch) next() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sampler.next()
}

// end counts a trace that is over, and says what that means for the file.
func (e *epoch) end() (exhausted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sampler.end()
	return e.sampler.exhausted()
}

// exhausted says that the count is used up and none of its traces is under way.
func (e *epoch) exhausted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sampler.exhausted()
}

func (e *epoch) idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sampler.idle()
}

// New makes a Tracer with the settings of the flags. It starts nothing.
func New(s Settings, deps Deps) *Tracer {
	t := &Tracer{deps: deps, flags: s, queue: make(chan *infer.TraceFamily, maxQueue), kick: make(chan struct{}, 1)}
	t.budget.Store(maxTensors)
	if deps.Spans != nil {
		t.sink = deps.Spans.Take
	}
	t.set(&view{global: newEpoch(s, 0), models: map[string]*epoch{}})
	return t
}

// On says that some request may be sampled. It is one atomic load, for the path of
// every request; nil is off.
func (t *Tracer) On() bool { return t != nil && t.on.Load() }

// Dropped counts the traces that were lost, since the writer did not keep up or the file
// could not be written.
func (t *Tracer) Dropped() uint64 { return t.lost.Load() }

func (t *Tracer) drop(n int) {
	t.lost.Add(uint64(n))
	if t.deps.Dropped != nil {
		t.deps.Dropped(n)
	}
}

func (t *Tracer) set(v *view) {
	t.view.Store(v)
	t.on.Store(v.samples())
}

// rest looks again whether anything may be sampled, after a count was used up.
func (t *Tracer) rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on.Store(t.view.Load().samples())
}

// Sample decides whether a request for a model is traced; nil: no. Who gets a trace
// ends it.
func (t *Tracer) Sample(model, requestID string) *infer.Trace {
	e := t.view.Load().of(model)
	if !e.live || !e.next() {
		return nil
	}
	f := &infer.TraceFamily{Level: e.settings.Level, IDs: &t.ids, Sink: t.take, Owner: e, Room: maxRoom, Budget: &t.budget}
	return f.Begin(model, requestID)
}

// take is the Sink of every family: it queues the family for Run.
func (t *Tracer) take(f *infer.TraceFamily) {
	select {
	case t.queue <- f:
	default:
		t.budget.Add(f.Taken)
		t.drop(1)
		f.Owner.(*epoch).end()
		t.wake() // it may have been the last that the others wait for
	}
}

// wake makes Run look at what is over.
func (t *Tracer) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// Settings are those in force for a model, or with "" globally.
func (t *Tracer) Settings(model string) Settings { return t.view.Load().of(model).current() }

// Update changes the settings of a model, or with "" the global ones, which those of
// models follow where they have none of their own. Settings with which nothing could be
// traced are refused, unless they turn tracing off; nothing has changed then.
// Source: TraceManager::UpdateTraceSetting of the original.
func (t *Tracer) Update(model string, c Change) error {
	if c.IsZero() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.view.Load()
	next := &view{global: old.global, models: maps.Clone(old.models)}
	var gone []*epoch
	if model == "" {
		e, err := changed(old.global, &c, t.flags)
		if err != nil {
			return err
		}
		next.global, gone = e, append(gone, old.global)
		for name, m := range old.models {
			if m.own == fieldsAll {
				continue
			}
			e, err := changed(m, &Change{}, next.global.settings)
			if err != nil {
				return err
			}
			next.models[name], gone = e, append(gone, m)
		}
	} else {
		now := old.models[model]
		if now != nil {
			gone = append(gone, now)
		} else {
			now = newEpoch(Settings{}, 0)
		}
		if _, own := c.apply(Settings{}, now.own, Settings{}); own == 0 {
			delete(next.models, model) // it follows the global settings, whatever they are
		} else {
			e, err := changed(now, &c, old.global.current())
			if err != nil {
				return err
			}
			next.models[model] = e
		}
	}
	t.set(next)
	for _, e := range gone {
		e.over.Store(true)
	}
	t.wake()
	return nil
}

func changed(now *epoch, c *Change, above Settings) (*epoch, error) {
	s, own := c.apply(now.current(), now.own, above)
	if s.Level != 0 && !s.samples() {
		return nil, infer.Errorf(infer.InvalidArg, "Attempting to set invalid trace setting :%s", s.fault())
	}
	return newEpoch(s, own), nil
}
