package stats

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// Calls counts calls of all kinds as they end: by outcome, refusals by their reason, and
// what each principal had, where that is asked for.
type Calls struct {
	most       int // principals with figures of their own; 0: none
	outcomes   []string
	http, grpc []atomic.Uint64 // by outcome

	mu         sync.Mutex
	refused    map[refusal]uint64
	principals map[string]*principal // by name; others are all further ones
}

// others is the name of all principals beyond the bound, and of one that is called so.
const others = "other"

type refusal struct{ protocol, reason string }

// principal is what one caller had.
type principal struct {
	outcomes  []atomic.Uint64
	computeNS atomic.Int64
	received  atomic.Int64
	sent      atomic.Int64
}

// Calls makes the counter of calls. outcomes are the names that Ended may give; the
// figures of the first `principals` principals that call are kept by name, and those of
// all others together as "other": names come from tokens, and may be any number.
func (r *Registry) Calls(outcomes []string, principals int) *Calls {
	c := &Calls{most: principals, outcomes: outcomes, http: make([]atomic.Uint64, len(outcomes)), grpc: make([]atomic.Uint64, len(outcomes)),
		refused: map[refusal]uint64{}, principals: map[string]*principal{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = c
	return c
}

// Ended counts a call, whose outcome is one of Calls'.
func (c *Calls) Ended(env *infer.Envelope, end *infer.End, outcome string) {
	at := slices.Index(c.outcomes, outcome)
	if at < 0 {
		return
	}
	if env.Protocol == "grpc" {
		c.grpc[at].Add(1)
	} else {
		c.http[at].Add(1)
	}
	if end.Err != nil {
		if reason := refusalReason(end.Err); reason != "" {
			c.mu.Lock()
			c.refused[refusal{env.Protocol, reason}]++
			c.mu.Unlock()
		}
	}
	if c.most == 0 {
		return
	}
	p := c.principal(env.Principal)
	p.outcomes[at].Add(1)
	p.received.Add(end.Received)
	p.sent.Add(end.Sent)
	if req := end.Request; req != nil {
		p.computeNS.Add(share(req))
	}
}

// refusalReason is why a call was refused or given up; "" where it was neither.
func refusalReason(err error) string {
	if r := infer.ReasonOf(err); r != "" {
		return string(r)
	}
	switch infer.CodeOf(err) {
	case infer.Unauthenticated:
		return "unauthenticated"
	case infer.PermissionDenied:
		return "permission_denied"
	}
	return ""
}

// share is a request's part of the time that its batch took an instance.
func share(req *infer.Request) int64 {
	t := &req.Times
	ns := int64(span(t.ComputeStart, t.ComputeEnd))
	if t.CacheHit || t.BatchRows <= 0 || req.Rows <= 0 || req.Rows >= t.BatchRows {
		return ns
	}
	return ns * int64(req.Rows) / int64(t.BatchRows)
}

func (c *Calls) principal(who *infer.Principal) *principal {
	name := "anonymous"
	if who != nil && who.Name != "" {
		name = who.Name
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.principals[name]; p != nil {
		return p
	}
	if len(c.principals) >= c.most {
		name = others
		if p := c.principals[name]; p != nil {
			return p
		}
	}
	p := &principal{outcomes: make([]atomic.Uint64, len(c.outcomes))}
	c.principals[name] = p
	return p
}

func (c *Calls) collect(w writer) {
	for i, outcome := range c.outcomes {
		const name, help = "sluice_calls_total", "Calls of any kind, by outcome."
		w.counter(name, help, float64(c.http[i].Load()), "protocol", "http", "outcome", outcome)
		w.counter(name, help, float64(c.grpc[i].Load()), "protocol", "grpc", "outcome", outcome)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, n := range c.refused {
		w.counter("sluice_call_refusals_total", "Calls of any kind that were refused or given up, by reason.", float64(n),
			"protocol", r.protocol, "reason", r.reason)
	}
	for name, p := range c.principals {
		for i := range p.outcomes {
			w.counter("sluice_principal_requests_total", "Calls of a principal, by outcome.", float64(p.outcomes[i].Load()),
				"principal", name, "outcome", c.outcomes[i])
		}
		w.counter("sluice_principal_compute_seconds_total", "A principal's part of the time of instances.",
			float64(p.computeNS.Load())/1e9, "principal", name)
		w.counter("sluice_principal_received_bytes_total", "Bytes of bodies that a principal sent.", float64(p.received.Load()),
			"principal", name)
		w.counter("sluice_principal_sent_bytes_total", "Bytes of answers that a principal got.", float64(p.sent.Load()),
			"principal", name)
	}
}

// Reload counts the readings of one configuration file that is read again while the
// server runs.
type Reload struct {
	ok, failed atomic.Uint64
	at         atomic.Int64 // Unix nanoseconds of the last one that was taken; 0: none
	bad        atomic.Bool  // the last one was not taken
}

// Reload gives the counter of a configuration by its name, such as "policy" or "limits".
func (r *Registry) Reload(name string) *Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.reloads[name]
	if c == nil {
		c = &Reload{}
		r.reloads[name] = c
	}
	return c
}

// Done counts a reading; with an error the old configuration stays in use.
func (c *Reload) Done(err error) {
	c.bad.Store(err != nil)
	if err != nil {
		c.failed.Add(1)
		return
	}
	c.ok.Add(1)
	c.at.Store(time.Now().UnixNano())
}

func (c *Reload) collect(w writer, name string) {
	good := 1.0
	if c.bad.Load() {
		good = 0
	}
	w.gauge("sluice_config_last_reload_successful", "Whether the last reading of a configuration file was taken.", good, "config", name)
	w.gauge("sluice_config_last_reload_timestamp_seconds", "When a configuration file was last taken.", float64(c.at.Load())/1e9, "config", name)
	w.counter("sluice_config_reloads_total", "Readings of a configuration file, by result.", float64(c.ok.Load()), "config", name, "result", "taken")
	w.counter("sluice_config_reloads_total", "Readings of a configuration file, by result.", float64(c.failed.Load()), "config", name, "result", "refused")
}

// Source gives figures at a scrape through write; labels alternate name and value.
// It is called by one goroutine for each scrape, and must be quick.
type Source func(gauge, counter func(name, help string, v float64, labels ...string))

// Add makes a source part of every scrape that begins later. A series must come from one
// source alone.
func (r *Registry) Add(s Source) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, s)
}

// collectServer writes what is known of the server as a whole.
func (r *Registry) collectServer(w writer) {
	r.mu.Lock()
	calls, sources := r.calls, r.sources
	reloads := make(map[string]*Reload, len(r.reloads))
	for name, c := range r.reloads {
		reloads[name] = c
	}
	r.mu.Unlock()
	if calls != nil {
		calls.collect(w)
	}
	for name, c := range reloads {
		c.collect(w, name)
	}
	for _, s := range sources {
		s(w.gauge, w.counter)
	}
	if r.cfg.Version != "" {
		w.gauge("sluice_build_info", "The gateway's version.", 1, "version", r.cfg.Version, "go_version", runtime.Version(), "revision", revision())
	}
}

// revision is the commit that the program was built from, as far as the build says.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown" // an empty label would be none
}
