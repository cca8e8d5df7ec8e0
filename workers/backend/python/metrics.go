package python

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// What METRIC changes.
const (
	metricSet = iota
	metricAdd
	metricObserve
	metricDeclare
	metricDelete
)

const (
	// metricPatience bounds how long a result waits until the gateway has a model's figures.
	metricPatience = time.Second
	// mostChanges bounds the changes that wait for the gateway; a process that makes more waits.
	mostChanges = 4096
	// mostSeries bounds the metrics of a model that have a value here.
	mostSeries = 4096
)

// metrics are a model's figures: those of its instances together.
type metrics struct {
	mu      sync.Mutex
	help    map[string]string    // guarded by mu: by family
	buckets map[series][]float64 // guarded by mu: of histograms
	values  map[series]float64   // guarded by mu: of counters and gauges
	uses    map[series]int       // guarded by mu: how many processes' objects a series has
	queue   []*backend.Metric    // guarded by mu: changes that the gateway does not have yet, in their order
	busy    bool                 // guarded by mu: a goroutine passes them on
	moved   *sync.Cond           // of mu: queue or busy changed
}

// series is a metric of a family; labels is JSON with sorted names.
type series struct{ family, labels string }

func newMetrics() *metrics {
	m := &metrics{help: map[string]string{}, buckets: map[series][]float64{}, values: map[series]float64{},
		uses: map[series]int{}}
	m.moved = sync.NewCond(&m.mu)
	return m
}

// measured deals with METRIC.
func (r *run) measured(d *channel.Decoder) error {
	for range d.U16() {
		kind, change := d.U8(), d.U8()
		family, help, labels := d.String(), d.String(), d.String()
		buckets := make([]float64, d.Count(uint32(d.U16()), 8))
		for i := range buckets {
			buckets[i] = d.F64()
		}
		value := d.F64()
		if kind > uint8(backend.Histogram) || change > metricDelete {
			d.Fail("a metric of kind %d and change %d", kind, change)
		}
		if d.Err() != nil {
			return d.Err()
		}
		m := &backend.Metric{Family: family, Kind: backend.MetricKind(kind), Help: help, Buckets: buckets, Value: value}
		if labels != "" && labels != "{}" {
			if err := json.Unmarshal([]byte(labels), &m.Labels); err != nil {
				d.Fail("labels of a metric: %v", err)
				return d.Err()
			}
		}
		r.model().metrics.change(r, m, change, series{family, labels})
	}
	return d.Err()
}

// change notes a change and has the gateway get it.
func (m *metrics) change(r *run, c *backend.Metric, change uint8, s series) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch change {
	case metricDeclare:
		if m.uses[s] == 0 && len(m.uses) >= mostSeries {
			return // its changes go to the gateway, which has bounds, and its value is not known here
		}
		r.declared.add(s, c)
		if m.useLocked(s, c, 1); s.labels == "" { // a family
			return
		}
		c.Change = backend.Declare
	case metricDelete:
		if !r.declared.remove(s) || !m.dropLocked(s) || s.labels == "" {
			return
		}
		c.Change = backend.Delete
	case metricSet:
		c.Change = backend.Set
		if m.uses[s] > 0 {
			m.values[s] = c.Value
		}
	case metricAdd:
		c.Change = backend.Add
		if m.uses[s] > 0 {
			m.values[s] += c.Value
		}
	case metricObserve:
		c.Change, c.Buckets = backend.Observe, m.buckets[s]
	}
	m.queueLocked(r, c, s)
}

// useLocked adds objects to a series, or to a family, whose labels are "".
func (m *metrics) useLocked(s series, c *backend.Metric, times int) {
	switch first := m.uses[s] == 0; {
	case s.labels == "" && first:
		m.help[s.family] = c.Help // that of the first counts, as in Triton
	case s.labels == "":
	case c.Kind == backend.Histogram:
		m.buckets[s] = c.Buckets
	default:
		m.values[s] += 0
	}
	m.uses[s] += times
}

// dropLocked takes a process's object from a series or a family; true: it was the last one.
func (m *metrics) dropLocked(s series) bool {
	if m.uses[s]--; m.uses[s] > 0 {
		return false
	}
	delete(m.uses, s)
	delete(m.values, s)
	delete(m.buckets, s)
	if s.labels == "" {
		delete(m.help, s.family)
	}
	return true
}

// adopt takes over what a process has declared for the model whose config it has completed.
func (m *metrics) adopt(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, d := range r.declared {
		m.useLocked(s, d.metric, d.times)
		if s.labels == "" {
			continue
		}
		c := *d.metric
		c.Change, c.Value = backend.Declare, 0
		m.queueLocked(r, &c, s)
	}
}

// gone deletes what a process had that has ended.
func (m *metrics) gone(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, d := range r.declared {
		for range d.times {
			if m.dropLocked(s) && s.labels != "" {
				m.queueLocked(r, &backend.Metric{Family: s.family, Kind: d.metric.Kind, Labels: d.metric.Labels,
					Change: backend.Delete}, s)
			}
		}
	}
	r.declared = nil
}

// declared are the series that a process has objects of.
type declared map[series]*declaration

type declaration struct {
	metric *backend.Metric
	times  int // objects
}

func (d *declared) add(s series, m *backend.Metric) {
	if *d == nil {
		*d = declared{}
	}
	if (*d)[s] == nil {
		(*d)[s] = &declaration{metric: m}
	}
	(*d)[s].times++
}

// remove takes an object away; false: there is none.
func (d declared) remove(s series) bool {
	if d[s] == nil {
		return false
	}
	if d[s].times--; d[s].times == 0 {
		delete(d, s)
	}
	return true
}

// queueLocked has the gateway get a change; it waits while many others do.
func (m *metrics) queueLocked(r *run, c *backend.Metric, s series) {
	if help, ok := m.help[s.family]; ok {
		c.Help = help
	}
	for len(m.queue) >= mostChanges {
		m.moved.Wait()
	}
	if n := len(m.queue); n > 0 && c.Change == backend.Add && m.queue[n-1].Change == backend.Add &&
		sameSeries(m.queue[n-1], c) {
		m.queue[n-1].Value += c.Value
	} else {
		m.queue = append(m.queue, c)
	}
	if !m.busy {
		m.busy = true
		r.users.Go(func() { m.pass(r) })
	}
}

func sameSeries(a, b *backend.Metric) bool {
	if a.Family != b.Family || len(a.Labels) != len(b.Labels) {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// pass gives the gateway what is queued.
func (m *metrics) pass(r *run) {
	gateway := r.model().spec.Gateway
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.queue) > 0 {
		next := m.queue
		m.queue = nil
		m.moved.Broadcast()
		m.mu.Unlock()
		for _, c := range next {
			if gateway == nil {
				break
			}
			ctx, stop := context.WithTimeout(context.WithoutCancel(r.life), 10*metricPatience)
			err := gateway.Metric(ctx, c)
			stop()
			if err != nil {
				r.log.Warn("a metric of the model was refused", "family", c.Family, "error", err)
			}
		}
		m.mu.Lock()
	}
	m.busy = false
	m.moved.Broadcast()
}

// settled waits until the gateway has what was changed before, a bounded time: who got a model's
// answer finds the figures.
func (m *metrics) settled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.busy {
		return
	}
	late := false
	t := time.AfterFunc(metricPatience, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		late = true
		m.moved.Broadcast()
	})
	defer t.Stop()
	for m.busy && !late {
		m.moved.Wait()
	}
}

// value is that of a counter or a gauge, over all instances.
func (m *metrics) value(s series) (float64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[s]
	if !ok {
		return 0, infer.Errorf(infer.NotFound, "there is no metric '%s' with labels %s", s.family, s.labels)
	}
	return v, nil
}
