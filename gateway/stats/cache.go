package stats

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serve/sluice/cache"
)

// Cached says that the version's answers are kept: it has the metrics of the cache.
func (m *Model) Cached() { m.cached.Store(true) }

// cacheDescs are those of the metrics that a version has when a response cache is there.
type cacheDescs struct {
	hits, misses, hitTime, missTime *prometheus.Desc
}

func newCacheDescs(labels prometheus.Labels) cacheDescs {
	return cacheDescs{
		hits:     prometheus.NewDesc("nv_cache_num_hits_per_model", "Requests answered from the response cache.", nil, labels),
		misses:   prometheus.NewDesc("nv_cache_num_misses_per_model", "Requests that the response cache could not answer.", nil, labels),
		hitTime:  prometheus.NewDesc("nv_cache_hit_duration_per_model", "Microseconds of lookups that found an answer, summed.", nil, labels),
		missTime: prometheus.NewDesc("nv_cache_miss_duration_per_model", "Microseconds of lookups that found none, and of keeping the answer, summed.", nil, labels),
	}
}

// newCacheSummary makes one of nv_cache_{hit,miss}_summary_per_model.
func newCacheSummary(r *Registry, what string, labels prometheus.Labels) prometheus.Summary {
	return prometheus.NewSummary(prometheus.SummaryOpts{Name: "nv_cache_" + what + "_summary_per_model",
		Help: "Microseconds of response cache lookups that were a " + what + ".", ConstLabels: labels, Objectives: r.cfg.Quantiles})
}

// collectCache writes a version's cache metrics.
// Source of the names: the original, which has them when its cache is on.
func (m *Model) collectCache(out chan<- prometheus.Metric) {
	if m.registry.deps.Caches == nil || !m.cached.Load() {
		return
	}
	counter := func(desc *prometheus.Desc, v uint64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v))
	}
	d := &m.cacheDescs
	counter(d.hits, m.hits.Load())
	counter(d.misses, m.misses.Load())
	if m.registry.cfg.CounterLatencies {
		counter(d.hitTime, m.hitNS.Load()/1000)
		counter(d.missTime, m.missNS.Load()/1000)
	}
	for _, s := range []prometheus.Summary{m.hitSummary, m.missSummary} {
		if s != nil {
			s.Collect(out)
		}
	}
}

// collectCaches writes the figures of the levels: the original's names, which are those
// of its local cache, and ours for all levels.
func (w writer) collectCaches(all []cache.Figures) {
	for i := range all {
		f := &all[i]
		if f.Level == "local" {
			w.gauge("nv_cache_num_entries", "Entries of the response cache.", float64(f.Entries))
			w.gauge("nv_cache_num_lookups", "Lookups in the response cache.", float64(f.Lookups))
			w.gauge("nv_cache_num_hits", "Lookups that found an answer.", float64(f.Hits))
			w.gauge("nv_cache_num_misses", "Lookups that found none.", float64(f.Lookups-f.Hits))
			w.gauge("nv_cache_num_evictions", "Entries that made room for others.", float64(f.Evictions))
			w.gauge("nv_cache_lookup_duration", "Microseconds of lookups, summed.", float64(f.Lookup.Microseconds()))
			w.gauge("nv_cache_insertion_duration", "Microseconds of insertions, summed.", float64(f.Insertion.Microseconds()))
			w.gauge("nv_cache_util", "Share of the size that is in use, 0 to 1.", float64(f.Bytes)/float64(max(f.Size, 1)))
		}
		open := 0.0
		if f.Open {
			open = 1
		}
		w.counter("sluice_cache_lookups_total", "Lookups in a level of the response cache.", float64(f.Lookups), "level", f.Level)
		w.counter("sluice_cache_hits_total", "Lookups that found an answer.", float64(f.Hits), "level", f.Level)
		w.counter("sluice_cache_failures_total", "Lookups and fills that failed.", float64(f.Failures), "level", f.Level)
		w.counter("sluice_cache_dropped_total", "Answers that were not kept for want of room or of Redis.", float64(f.Dropped), "level", f.Level)
		w.counter("sluice_cache_lookup_seconds_total", "Seconds spent in lookups.", f.Lookup.Seconds(), "level", f.Level)
		w.gauge("sluice_cache_breaker_open", "1 while the level is not asked, since it failed.", open, "level", f.Level)
	}
}
