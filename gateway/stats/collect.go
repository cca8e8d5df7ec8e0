package stats

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serve/sluice/proto/worker"
)

// modelDescs are the descriptions of one model version's metrics, made once.
type modelDescs struct {
	success, count, exec, pending, load *prometheus.Desc
	failure, refusal                    *prometheus.Desc // with a reason
	durations                           [numPhases]*prometheus.Desc
}

func newModelDescs(labels prometheus.Labels) modelDescs {
	d := modelDescs{
		success: prometheus.NewDesc("nv_inference_request_success", "Requests answered successfully.", nil, labels),
		count:   prometheus.NewDesc("nv_inference_count", "Rows executed; cache hits are not in it.", nil, labels),
		exec:    prometheus.NewDesc("nv_inference_exec_count", "Batches executed; cache hits are not in it.", nil, labels),
		pending: prometheus.NewDesc("nv_inference_pending_request_count", "Requests that wait for an instance.", nil, labels),
		load:    prometheus.NewDesc("nv_model_load_duration_secs", "Seconds that loading the model took.", nil, labels),
		failure: prometheus.NewDesc("nv_inference_request_failure", "Requests that failed, by reason.", []string{"reason"}, labels),
		refusal: prometheus.NewDesc("sluice_refusals_total", "Requests refused or given up, by reason.", []string{"reason"}, labels),
	}
	for p := range d.durations {
		d.durations[p] = prometheus.NewDesc("nv_inference_"+phaseNames[p]+"_duration_us",
			"Microseconds that successful requests spent in the "+phaseNames[p]+" phase, summed.", nil, labels)
	}
	return d
}

// collector writes everything at a scrape. It describes nothing in advance: models,
// with labels of their own, come and go.
type collector struct{ r *Registry }

// Describe is prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	r := c.r
	r.mu.Lock()
	models := slices.Collect(maps.Values(r.models))
	workers := slices.Collect(maps.Values(r.workers))
	fronts := slices.Collect(maps.Values(r.fronts))
	r.mu.Unlock()
	for _, m := range models {
		m.collect(out)
	}
	w := writer{out}
	if r.deps.Caches != nil {
		w.collectCaches(r.deps.Caches())
	}
	for _, wk := range workers {
		wk.collect(w)
	}
	if r.cfg.GPU {
		collectGPUs(w, workers)
	}
	for _, f := range fronts {
		f.collect(w)
	}
	w.counter("sluice_traces_dropped_total", "Traces that were sampled and lost before they were written.", float64(r.traces.Load()))
	w.gauge("nv_pinned_memory_pool_total_bytes", "Bytes of pinned host memory; the gateway pins none.", 0)
	w.gauge("nv_pinned_memory_pool_used_bytes", "Bytes of pinned host memory in use.", 0)
	r.collectServer(w)
	if r.cpu != nil {
		r.cpu.collect(w)
	}
}

func (m *Model) collect(out chan<- prometheus.Metric) {
	d := &m.descs
	counter := func(desc *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v), labels...)
	}
	counter(d.success, m.success.Load())
	for i := range m.failures {
		counter(d.failure, m.failures[i].Load(), failureNames[i])
	}
	counter(d.count, m.inferred.Load())
	counter(d.exec, m.executed.Load())
	for i, reason := range refusals() {
		counter(d.refusal, m.refused[i].Load(), string(reason))
	}
	if m.registry.cfg.CounterLatencies {
		for p := range m.ns {
			counter(d.durations[p], m.ns[p].Load()/1000)
		}
	}
	out <- prometheus.MustNewConstMetric(d.pending, prometheus.GaugeValue, float64(m.pending.Load()))
	if ns := m.loadNanos.Load(); ns > 0 {
		out <- prometheus.MustNewConstMetric(d.load, prometheus.GaugeValue, float64(ns)/1e9)
	}
	m.collectCache(out)
	m.requestSeconds.Collect(out)
	m.queueSeconds.Collect(out)
	m.computeSeconds.Collect(out)
	if m.batchSize != nil {
		m.batchSize.Collect(out)
	}
	for _, s := range m.summaries {
		if s != nil {
			s.Collect(out)
		}
	}
}

// writer makes metrics that are few and not hot; labels alternate name and value.
type writer struct{ out chan<- prometheus.Metric }

func (w writer) write(kind prometheus.ValueType, name, help string, v float64, labels []string) {
	set := prometheus.Labels{}
	for i := 0; i+1 < len(labels); i += 2 {
		set[labels[i]] = labels[i+1]
	}
	w.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, set), kind, v)
}

func (w writer) gauge(name, help string, v float64, labels ...string) {
	w.write(prometheus.GaugeValue, name, help, v, labels)
}

func (w writer) counter(name, help string, v float64, labels ...string) {
	w.write(prometheus.CounterValue, name, help, v, labels)
}

func (wk *Worker) collect(w writer) {
	up := 0.0
	if wk.up.Load() {
		up = 1
	}
	w.gauge("sluice_worker_up", "Whether the worker process serves.", up, "worker", wk.name)
	w.counter("sluice_worker_restarts_total", "Times the worker process was started again.", float64(wk.restarts.Load()),
		"worker", wk.name)
	if s := wk.last(); s != nil {
		w.gauge("sluice_worker_resident_bytes", "Resident memory of the worker process.", float64(s.GetResidentBytes()),
			"worker", wk.name)
	}
}

// collectGPUs writes each GPU once, though several workers may report it.
func collectGPUs(w writer, workers []*Worker) {
	seen := map[string]bool{}
	for _, wk := range workers {
		for _, d := range wk.last().GetDevices() {
			uuid := d.GetDevice().GetUuid()
			if d.GetDevice().GetKind() != worker.Device_GPU || seen[uuid] {
				continue
			}
			seen[uuid] = true
			w.gauge("nv_gpu_utilization", "Share of time the GPU was busy, 0 to 1.", d.GetUtilization(), "gpu_uuid", uuid)
			w.gauge("nv_gpu_memory_total_bytes", "Memory of the GPU.", float64(d.GetMemoryTotalBytes()), "gpu_uuid", uuid)
			w.gauge("nv_gpu_memory_used_bytes", "Memory of the GPU in use.", float64(d.GetMemoryUsedBytes()), "gpu_uuid", uuid)
			w.gauge("nv_gpu_power_usage", "Watts the GPU draws.", d.GetPowerWatts(), "gpu_uuid", uuid)
			w.gauge("nv_gpu_power_limit", "Watts the GPU may draw.", d.GetPowerLimitWatts(), "gpu_uuid", uuid)
			w.counter("nv_energy_consumption", "Joules the GPU has used since its worker started.", d.GetEnergyJoules(),
				"gpu_uuid", uuid)
		}
	}
}

func (f *Front) collect(w writer) {
	const name, help = "sluice_requests_total", "Answers of the front ends, by protocol and code."
	for i := range f.counts {
		// a code that was never answered is no series: there are sixty of them
		if n := f.counts[i].Load(); n > 0 {
			w.counter(name, help, float64(n), "protocol", f.protocol, "code", f.names[i])
		}
	}
	if n := f.unknown.Load(); n > 0 {
		w.counter(name, help, float64(n), "protocol", f.protocol, "code", "other")
	}
}
