package xds

import (
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
)

// RolloutConfig are the times of a Rollout.
type RolloutConfig struct {
	// Batch is how long a change waits for others; MaxBatch bounds that for a stream of
	// changes.
	Batch, MaxBatch time.Duration
	// Settle is what Envoy has, once it took new clusters, to find their gateways
	// healthy; MaxSettle bounds the whole wait.
	Settle, MaxSettle time.Duration
	// Grace is how long what nothing refers to any more stays.
	Grace time.Duration
}

// DefaultRollout are times for people's changes: some milliseconds for endpoints,
// half a second for a new cluster.
func DefaultRollout() RolloutConfig {
	return RolloutConfig{Batch: 20 * time.Millisecond, MaxBatch: 200 * time.Millisecond, Settle: 300 * time.Millisecond,
		MaxSettle: 5 * time.Second, Grace: 5 * time.Second}
}

// phase is where a Rollout stands.
type phase uint8

const (
	idle    phase = iota // what is published is what is wanted
	growing              // new clusters and endpoints are out, routes are the old ones
	moved                // routes are the new ones, what they left is still there
)

// Rollout decides what one zone's Envoys are told when: first what is added and changed
// of clusters, endpoints and secrets, then listeners and routes, and after a grace what
// is gone. It is a plain state machine: time comes in, resources go out.
type Rollout struct {
	cfg       RolloutConfig
	phase     phase
	published *Resources // nil: nothing yet
	target    *Resources // what published becomes
	next      *Resources // the newest wish, which waits for its batch; nil: none
	first     time.Time  // when next began to wait
	last      time.Time  // when next was changed last
	since     time.Time  // when it began to grow
	confirmed time.Time  // when the Envoys had taken the growth; zero: not yet
	// left is when the routes left what target has not any more: clusters, with their
	// endpoints, by name, and secrets with a slash before it.
	left map[string]time.Time
}

// NewRollout begins with nothing published.
func NewRollout(cfg RolloutConfig) *Rollout {
	return &Rollout{cfg: cfg, left: map[string]time.Time{}}
}

// Set wishes for r, in place of every earlier wish.
func (o *Rollout) Set(now time.Time, r *Resources) {
	if o.next == nil {
		o.first = now
	}
	o.next, o.last = r, now
}

// Step moves on as far as now allows. confirmed says that every Envoy has taken the
// clusters published last. What comes back is to be published, nil when nothing is; at
// is when to ask again at the latest, zero when only Set or confirmed can change
// anything.
func (o *Rollout) Step(now time.Time, confirmed bool) (out *Resources, at time.Time) {
	before := o.published
	grew := o.begin(now)
	if o.phase == growing {
		if confirmed && !grew && o.confirmed.IsZero() {
			o.confirmed = now
		}
		if !now.Before(o.settled()) {
			o.move(now)
		}
	}
	if o.phase == moved {
		o.remove(now)
	}
	if o.published != before {
		out = o.published
	}
	return out, o.wake()
}

// begin starts on the wish that has waited long enough, and says whether the Envoys have
// clusters to take.
func (o *Rollout) begin(now time.Time) (grew bool) {
	if o.next == nil || o.published != nil && now.Before(o.due()) {
		return false
	}
	r := o.next
	o.next, o.target = nil, r
	if o.published == nil {
		o.published = r
		return false
	}
	if o.phase == idle && r.Equal(o.published) {
		o.target = o.published
		return false
	}
	old := o.published
	o.published = &Resources{Clusters: union(old.Clusters, r.Clusters), Endpoints: union(old.Endpoints, r.Endpoints),
		Secrets: union(old.Secrets, r.Secrets), Routes: old.Routes, Listeners: old.Listeners}
	grew = adds(old.Clusters, r.Clusters)
	switch {
	case grew && o.phase != growing:
		o.phase, o.since, o.confirmed = growing, now, time.Time{}
	case grew: // since stays: changes without end must not hold the routes back
		o.confirmed = time.Time{}
	case o.phase != growing: // nothing to wait for
		o.move(now)
	}
	return grew
}

// move lets the routes follow.
func (o *Rollout) move(now time.Time) {
	o.phase = moved
	o.published = &Resources{Clusters: o.published.Clusters, Endpoints: o.published.Endpoints, Secrets: o.published.Secrets,
		Routes: o.target.Routes, Listeners: o.target.Listeners}
	note := func(prefix string, have, want map[string]types.Resource) {
		for name := range have {
			if _, ok := want[name]; ok {
				delete(o.left, prefix+name)
			} else if _, ok := o.left[prefix+name]; !ok {
				o.left[prefix+name] = now
			}
		}
	}
	note("", o.published.Clusters, o.target.Clusters)
	note("/", o.published.Secrets, o.target.Secrets)
}

// remove takes away what the routes left long enough ago.
func (o *Rollout) remove(now time.Time) {
	keep := func(prefix string, have map[string]types.Resource) map[string]types.Resource {
		kept := make(map[string]types.Resource, len(have))
		for name, r := range have {
			if at, ok := o.left[prefix+name]; !ok || now.Before(at.Add(o.cfg.Grace)) {
				kept[name] = r
			}
		}
		return kept
	}
	p := o.published
	r := &Resources{Clusters: keep("", p.Clusters), Endpoints: keep("", p.Endpoints), Secrets: keep("/", p.Secrets),
		Routes: p.Routes, Listeners: p.Listeners}
	if len(r.Clusters) != len(p.Clusters) || len(r.Secrets) != len(p.Secrets) {
		o.published = r
		for key, at := range o.left {
			if !now.Before(at.Add(o.cfg.Grace)) {
				delete(o.left, key)
			}
		}
	}
	if len(o.left) == 0 {
		o.phase = idle
	}
}

// due is when the wish has waited long enough.
func (o *Rollout) due() time.Time {
	quiet, limit := o.last.Add(o.cfg.Batch), o.first.Add(o.cfg.MaxBatch)
	if limit.Before(quiet) {
		return limit
	}
	return quiet
}

// settled is when the routes may follow the clusters.
func (o *Rollout) settled() time.Time {
	limit := o.since.Add(o.cfg.MaxSettle)
	if o.confirmed.IsZero() {
		return limit
	}
	if at := o.confirmed.Add(o.cfg.Settle); at.Before(limit) {
		return at
	}
	return limit
}

// wake is when Step has something to do by time alone.
func (o *Rollout) wake() (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if o.next != nil {
		sooner(o.due())
	}
	switch o.phase {
	case growing:
		sooner(o.settled())
	case moved:
		for _, t := range o.left {
			sooner(t.Add(o.cfg.Grace))
		}
	}
	return at
}

// adds says that newer has something that older has not.
func adds(older, newer map[string]types.Resource) bool {
	for name := range newer {
		if _, ok := older[name]; !ok {
			return true
		}
	}
	return false
}
