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
	since     time.Time  // when the phase began
	confirmed time.Time  // when the Envoys had taken the growth; zero: not yet
}

// NewRollout begins with nothing published.
func NewRollout(cfg RolloutConfig) *Rollout { return &Rollout{cfg: cfg} }

// Set wishes for r, in place of every earlier wish.
func (o *Rollout) Set(now time.Time, r *Resources) {
	if o.next == nil {
		o.first = now
	}
	o.next, o.last = r, now
}

// Growing says that Step waits for the Envoys to take what was published last.
func (o *Rollout) Growing() bool { return o.phase == growing }

// Step moves on as far as now allows. confirmed says that every Envoy has taken the
// clusters published last. What comes back is to be published, nil when nothing is; at
// is when to ask again at the latest, zero when only Set or confirmed can change
// anything.
func (o *Rollout) Step(now time.Time, confirmed bool) (out *Resources, at time.Time) {
	if r := o.begin(now); r != nil {
		out, confirmed = r, false
	}
	if o.phase == growing {
		if confirmed && o.confirmed.IsZero() {
			o.confirmed = now
		}
		if done := o.settled(); !now.Before(done) {
			o.phase, o.since = moved, now
			o.published = &Resources{Clusters: o.published.Clusters, Endpoints: o.published.Endpoints, Secrets: o.published.Secrets,
				Routes: o.target.Routes, Listeners: o.target.Listeners}
			out = o.published
		}
	}
	if o.phase == moved && !now.Before(o.since.Add(o.cfg.Grace)) {
		o.phase = idle
		if !o.published.Equal(o.target) {
			out = o.target
		}
		o.published = o.target
	}
	return out, o.wake()
}

// begin starts on the wish that has waited long enough.
func (o *Rollout) begin(now time.Time) *Resources {
	if o.next == nil || o.published != nil && now.Before(o.due()) {
		return nil
	}
	r := o.next
	o.next, o.target = nil, r
	if o.published == nil {
		o.published, o.phase = r, idle
		return r
	}
	if o.phase == idle && r.Equal(o.published) {
		return nil
	}
	old := o.published
	grown := &Resources{Clusters: union(old.Clusters, r.Clusters), Endpoints: union(old.Endpoints, r.Endpoints),
		Secrets: union(old.Secrets, r.Secrets), Routes: old.Routes, Listeners: old.Listeners}
	o.published, o.since, o.confirmed = grown, now, time.Time{}
	o.phase = growing
	if !adds(old.Clusters, r.Clusters) { // nothing to wait for
		o.phase = moved
		grown.Routes, grown.Listeners = r.Routes, r.Listeners
	}
	return grown
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
		sooner(o.since.Add(o.cfg.Grace))
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
