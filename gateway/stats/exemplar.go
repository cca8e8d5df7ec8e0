package stats

import (
	"net/http"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
)

// ExemplarLabel is the label of exemplars that names the trace.
// Source: what Grafana and the exporters of OpenTelemetry call it.
const ExemplarLabel = "trace_id"

// exemplarEvery is the least time between two exemplars of requests that took about as
// long: a scrape sees the last one of each bucket alone, and one costs microseconds.
const exemplarEvery = int64(time.Second)

// exemplars say when the last exemplar of each bucket of request durations was taken, in
// nanoseconds of infer.Now.
type exemplars [len(durations) + 1]atomic.Int64

// of is the label set that leads from a histogram to the trace of a request which took so
// many seconds until now; nil where its spans are not kept, or another request that is
// like it has just left one.
func (e *exemplars) of(req *infer.Request, took float64, now int64) prometheus.Labels {
	s := req.SpanContext()
	if !s.Sampled {
		return nil
	}
	at := sort.SearchFloat64s(durations[:], took)
	last := e[at].Load()
	if last != 0 && now-last < exemplarEvery || !e[at].CompareAndSwap(last, now) {
		return nil
	}
	return prometheus.Labels{ExemplarLabel: s.Trace.String()}
}

// observe counts v, with an exemplar where there is one.
func observe(h prometheus.Histogram, v float64, labels prometheus.Labels) {
	if labels != nil {
		if e, ok := h.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(v, labels)
			return
		}
	}
	h.Observe(v)
}

// scrapes serves the metrics of g in the format that a client accepts.
func scrapes(g prometheus.Gatherer) http.Handler {
	opts := promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 8}
	all, open := promhttp.HandlerFor(g, opts), promhttp.HandlerFor(unsuffixed{g}, opts)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if expfmt.NegotiateIncludingOpenMetrics(req.Header).FormatType() == expfmt.TypeOpenMetrics {
			open.ServeHTTP(w, req)
			return
		}
		all.ServeHTTP(w, req)
	})
}

// unsuffixed is a Gatherer for OpenMetrics, where a counter's name must end in _total:
// its encoder would rename the original's counters, which don't, and a dashboard would
// look for them in vain. They have no type there.
// Source: OpenMetrics 1.0, Counter; the names are the original's.
type unsuffixed struct{ prometheus.Gatherer }

// Gather is prometheus.Gatherer's.
func (u unsuffixed) Gather() ([]*dto.MetricFamily, error) {
	families, err := u.Gatherer.Gather()
	for _, f := range families {
		if f.GetType() != dto.MetricType_COUNTER || strings.HasSuffix(f.GetName(), "_total") {
			continue
		}
		f.Type = dto.MetricType_UNTYPED.Enum()
		for _, m := range f.GetMetric() {
			m.Untyped, m.Counter = &dto.Untyped{Value: proto.Float64(m.GetCounter().GetValue())}, nil
		}
	}
	return families, err
}
