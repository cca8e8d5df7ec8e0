package stats

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-serve/sluice/cache"
)

// Config says which metrics there are. Source: --metrics-config and
// --allow-cpu-metrics, --allow-gpu-metrics of the original.
type Config struct {
	CounterLatencies bool // …_duration_us; the original's default is true
	SummaryLatencies bool // …_summary_us; costs about a microsecond each a request
	// HistogramLatencies turns on the original's histograms, which exist for decoupled
	// models only and come with them. Ours are always there.
	HistogramLatencies bool
	// Quantiles of the summaries and their allowed errors; empty: DefaultQuantiles.
	Quantiles map[float64]float64
	CPU, GPU  bool // nv_cpu_… and nv_gpu_…
	Version   string
}

// DefaultQuantiles are those of the original's summaries.
func DefaultQuantiles() map[float64]float64 {
	return map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001}
}

// Deps are where figures of others come from.
type Deps struct {
	// Caches gives the figures of the response cache's levels; nil: there is no response
	// cache.
	Caches func() []cache.Figures
	// Models has the metrics that models make themselves, which are part of every scrape. It
	// describes nothing in advance, and its families have names of their own. nil: none.
	Models prometheus.Collector
}

// Registry holds all records and writes them out.
type Registry struct {
	cfg     Config
	deps    Deps
	gather  *prometheus.Registry
	started time.Time
	cpu     *cpuReader
	traces  atomic.Uint64 // that were lost

	mu      sync.Mutex
	models  map[string]*Model
	workers map[string]*Worker
	fronts  map[string]*Front
	reloads map[string]*Reload
	calls   *Calls // nil: none
	sources []Source
}

// New makes an empty registry. Nothing of it is shared with other registries.
func New(cfg Config, deps Deps) *Registry {
	if len(cfg.Quantiles) == 0 {
		cfg.Quantiles = DefaultQuantiles()
	}
	r := &Registry{
		cfg:     cfg,
		deps:    deps,
		gather:  prometheus.NewRegistry(),
		started: time.Now(),
		models:  map[string]*Model{},
		workers: map[string]*Worker{},
		fronts:  map[string]*Front{},
		reloads: map[string]*Reload{},
	}
	if cfg.CPU {
		r.cpu = newCPUReader("/proc")
	}
	r.gather.MustRegister(collector{r}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if deps.Models != nil {
		r.gather.MustRegister(deps.Models)
	}
	return r
}

// Model gives the record of a model version, a new one or, while a reload holds two
// loads of it at once, the one that counts already. tags are the config's metric_tags, of
// which those that can't be labels are left out (see labels);
// batching says that the model has a batch dimension and so a batch size histogram.
// Remove gives it back.
func (r *Registry) Model(name string, version int64, tags map[string]string, batching bool) *Model {
	tags = labels(tags)
	key := modelKey(name, version, tags)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[key]
	if m == nil {
		m = newModel(r, key, name, version, tags, batching)
		r.models[key] = m
	}
	m.holders++
	return m
}

// labels are the tags that Prometheus takes as labels beside ours: a name that is
// reserved, or ours, would fail every scrape of the server for one model's sake.
func labels(tags map[string]string) map[string]string {
	out := make(map[string]string, len(tags))
	for name, value := range tags {
		switch name {
		case "", "model", "version", "le", "quantile":
			continue
		}
		if utf8.ValidString(name) && !strings.HasPrefix(name, "__") {
			out[name] = strings.ToValidUTF8(value, "\ufffd")
		}
	}
	return out
}

func modelKey(name string, version int64, tags map[string]string) string {
	var b strings.Builder
	b.WriteString(strconv.Quote(name) + strconv.FormatInt(version, 10))
	for _, k := range sortedKeys(tags) {
		b.WriteString(strconv.Quote(k) + strconv.Quote(tags[k]))
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Remove gives a record back; when all its holders have, its metrics disappear. What
// is counted on it afterwards is lost.
func (r *Registry) Remove(m *Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.holders--; m.holders == 0 {
		delete(r.models, m.key)
	}
}

// TracesDropped counts sampled requests whose traces were lost; tracing.Deps.Dropped fits.
func (r *Registry) TracesDropped(n int) { r.traces.Add(uint64(n)) }

// Handler serves /metrics as Prometheus text, OpenMetrics or protobuf, as the client
// accepts; every other path is 404.
func (r *Registry) Handler() http.Handler {
	metrics := scrapes(r.gather)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path != "/metrics":
			http.Error(w, "not found", http.StatusNotFound)
		case req.Method != http.MethodGet && req.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			metrics.ServeHTTP(w, req)
		}
	})
}

// Serve answers on l, by a handler that guard puts before Handler, until ctx ends. Then it
// closes l and waits up to a second for scrapes under way. guard decides who may read the
// metrics; nil: everybody. l is closed on return.
func (r *Registry) Serve(ctx context.Context, l net.Listener, guard func(metrics http.Handler) http.Handler) error {
	handler := r.Handler()
	if guard != nil {
		handler = guard(handler)
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := srv.Shutdown(last)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		return errors.Join(err, served)
	}
	return err
}
