package stats

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// failure is the original's reason label of failed requests.
type failure int

const (
	rejected failure = iota
	canceled
	backend
	other
	numFailures
)

var failureNames = [numFailures]string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}

// refusals lists the reasons that are counted by name.
func refusals() []infer.Reason {
	return []infer.Reason{infer.ReasonQueueFull, infer.ReasonQueueTimeout, infer.ReasonDeadline, infer.ReasonCancelled,
		infer.ReasonStopping, infer.ReasonNotReady, infer.ReasonMemory, infer.ReasonWorkerLost, infer.ReasonTooLarge,
		infer.ReasonRate, infer.ReasonConcurrency, infer.ReasonBytesInFlight, infer.ReasonFairShare,
		infer.ReasonSequences, infer.ReasonSequenceSlots, infer.ReasonSequenceLost, infer.ReasonUnplaced, "other", "invalid"}
}

const (
	otherRefusal = 17
	invalid      = 18 // refused by validation
	numRefusals  = 19
)

// phase is one of the durations that requests have.
type phase int

const (
	phaseRequest phase = iota
	phaseQueue
	phaseInput
	phaseInfer
	phaseOutput
	numPhases
)

var phaseNames = [numPhases]string{"request", "queue", "compute_input", "compute_infer", "compute_output"}

// Model is the record of one model version. It fits schedule.Observer and
// repository.Stats.
type Model struct {
	registry *Registry
	key      string
	name     string
	version  string
	holders  int // guarded by Registry.mu

	success   atomic.Uint64
	failures  [numFailures]atomic.Uint64
	failNS    atomic.Uint64
	ns        [numPhases]atomic.Uint64 // of successes
	hits      atomic.Uint64
	hitNS     atomic.Uint64
	misses    atomic.Uint64
	cached    atomic.Bool
	missNS    atomic.Uint64
	refused   [numRefusals]atomic.Uint64
	pending   atomic.Int64
	inferred  atomic.Uint64 // rows executed
	executed  atomic.Uint64
	requests  atomic.Uint64 // of batches that came back
	computeNS atomic.Uint64 // of those batches
	last      atomic.Int64  // Unix milliseconds of the last execution; 0: none
	loadNanos atomic.Int64  // duration of the last load; 0: unknown

	requestSeconds, queueSeconds, computeSeconds, batchSize prometheus.Histogram
	summaries                                               [numPhases]prometheus.Summary // nil when off
	descs                                                   modelDescs
	cacheDescs                                              cacheDescs
	exemplars                                               exemplars
	hitSummary, missSummary                                 prometheus.Summary // nil when off

	mu      sync.Mutex
	batches map[int]*batchStat
	memory  []*inference.MemoryUsage
}

type batchStat struct {
	count                uint64
	input, infer, output uint64 // nanoseconds
}

func newModel(r *Registry, key, name string, version int64, tags map[string]string, batching bool) *Model {
	m := &Model{registry: r, key: key, name: name, version: strconv.FormatInt(version, 10), batches: map[int]*batchStat{}}
	labels := prometheus.Labels{}
	for k, v := range tags {
		labels[k] = v
	}
	labels["model"], labels["version"] = m.name, m.version
	m.descs, m.cacheDescs = newModelDescs(labels), newCacheDescs(labels)
	m.requestSeconds = newHistogram("sluice_request_duration_seconds", "Time from arrival to answer of successful requests.", labels,
		durationBuckets())
	m.queueSeconds = newHistogram("sluice_queue_duration_seconds", "Time that requests waited for an instance.", labels,
		durationBuckets())
	m.computeSeconds = newHistogram("sluice_compute_duration_seconds", "Time that a request's batch took.", labels,
		durationBuckets())
	if batching {
		m.batchSize = newHistogram("sluice_batch_size", "Rows of each execution.", labels, prometheus.ExponentialBuckets(1, 2, 10))
	}
	if r.cfg.SummaryLatencies {
		if r.deps.Caches != nil {
			m.hitSummary, m.missSummary = newCacheSummary(r, "hit", labels), newCacheSummary(r, "miss", labels)
		}
		for p := range m.summaries {
			m.summaries[p] = prometheus.NewSummary(prometheus.SummaryOpts{Name: "nv_inference_" + phaseNames[p] + "_summary_us",
				Help: "Microseconds of the " + phaseNames[p] + " phase.", ConstLabels: labels, Objectives: r.cfg.Quantiles})
		}
	}
	return m
}

// durations are the upper bounds of the classic buckets, in seconds.
var durations = [...]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

func durationBuckets() []float64 { return durations[:] }

func newHistogram(name, help string, labels prometheus.Labels, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour})
}

// Done counts a request that has ended, with its times; err is what Do returned. A
// RequestEnd of 0 is now.
func (m *Model) Done(req *infer.Request, err error) {
	t := &req.Times
	end := t.RequestEnd
	if end == 0 {
		end = infer.Now()
	}
	took := span(t.RequestStart, end)
	if err != nil {
		m.fail(t, took, err)
		return
	}
	m.success.Add(1)
	m.spend(phaseRequest, took)
	trace := m.exemplars.of(req, seconds(took), end)
	observe(m.requestSeconds, seconds(took), trace)
	switch {
	case t.CacheHit:
		m.hits.Add(1)
		m.spend(phaseQueue, 0) // as in the original, its count has hits in it
		m.hitNS.Add(took64(t.CacheLookup))
		if m.hitSummary != nil {
			m.hitSummary.Observe(float64(t.CacheLookup) / 1e3)
		}
		return
	case t.CacheLookup > 0:
		m.misses.Add(1)
		m.missNS.Add(took64(t.CacheLookup))
		if m.missSummary != nil {
			m.missSummary.Observe(float64(t.CacheLookup) / 1e3)
		}
	}
	queue, compute := span(t.QueueStart, t.ComputeStart), span(t.ComputeStart, t.ComputeEnd)
	m.spend(phaseQueue, queue)
	m.spend(phaseInput, span(t.ComputeStart, t.ComputeInputEnd))
	m.spend(phaseInfer, span(t.ComputeInputEnd, t.ComputeOutputStart))
	m.spend(phaseOutput, span(t.ComputeOutputStart, t.ComputeEnd))
	observe(m.queueSeconds, seconds(queue), trace)
	observe(m.computeSeconds, seconds(compute), trace)
}

func (m *Model) spend(p phase, ns uint64) {
	m.ns[p].Add(ns)
	if s := m.summaries[p]; s != nil {
		s.Observe(float64(ns) / 1e3)
	}
}

func (m *Model) fail(t *infer.Times, took uint64, err error) {
	reason := infer.ReasonOf(err)
	switch {
	case reason != "":
		m.refused[refusalIndex(reason)].Add(1)
	case t.QueueStart == 0 && infer.CodeOf(err) != infer.Cancelled:
		// Validation refused it. The original does not count such requests as failures.
		m.refused[invalid].Add(1)
		return
	}
	m.failNS.Add(took)
	m.failures[failureOf(t, reason, err)].Add(1)
}

// failureOf sorts a failure as the original does: refused by a limit, abandoned by the
// caller, failed in the model, or anything else.
func failureOf(t *infer.Times, reason infer.Reason, err error) failure {
	switch reason {
	case infer.ReasonQueueFull, infer.ReasonQueueTimeout, infer.ReasonStopping, infer.ReasonNotReady, infer.ReasonMemory,
		infer.ReasonTooLarge, infer.ReasonRate, infer.ReasonConcurrency, infer.ReasonBytesInFlight, infer.ReasonFairShare,
		infer.ReasonSequences, infer.ReasonSequenceSlots:
		return rejected
	case infer.ReasonWorkerLost, infer.ReasonSequenceLost:
		return backend
	}
	switch {
	case infer.CodeOf(err) == infer.Cancelled:
		return canceled
	case t.ComputeStart != 0:
		return backend
	}
	return other
}

func refusalIndex(reason infer.Reason) int {
	switch reason {
	case infer.ReasonQueueFull:
		return 0
	case infer.ReasonQueueTimeout:
		return 1
	case infer.ReasonDeadline:
		return 2
	case infer.ReasonCancelled:
		return 3
	case infer.ReasonStopping:
		return 4
	case infer.ReasonNotReady:
		return 5
	case infer.ReasonMemory:
		return 6
	case infer.ReasonWorkerLost:
		return 7
	case infer.ReasonTooLarge:
		return 8
	case infer.ReasonRate:
		return 9
	case infer.ReasonConcurrency:
		return 10
	case infer.ReasonBytesInFlight:
		return 11
	case infer.ReasonFairShare:
		return 12
	case infer.ReasonSequences:
		return 13
	case infer.ReasonSequenceSlots:
		return 14
	case infer.ReasonSequenceLost:
		return 15
	case infer.ReasonUnplaced:
		return 16
	}
	return otherRefusal
}

// Executed is schedule.Observer: a batch came back successfully.
func (m *Model) Executed(requests, rows int, c infer.ComputeTimes) {
	m.executed.Add(1)
	m.inferred.Add(uint64(max(rows, 0)))
	m.batchEnded(requests, took64(c.Input)+took64(c.Infer)+took64(c.Output))
	m.last.Store(time.Now().UnixMilli())
	if m.batchSize != nil {
		m.batchSize.Observe(float64(rows))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.batches[rows]
	if b == nil {
		b = &batchStat{}
		m.batches[rows] = b
	}
	b.count++
	b.input += took64(c.Input)
	b.infer += took64(c.Infer)
	b.output += took64(c.Output)
}

// Queued is schedule.Observer.
func (m *Model) Queued(delta int) { m.pending.Add(int64(delta)) }

// SetLoadDuration says how long loading took, for nv_model_load_duration_secs.
func (m *Model) SetLoadDuration(d time.Duration) { m.loadNanos.Store(int64(d)) }

// SetMemory says what the loaded version holds, for memory_usage.
func (m *Model) SetMemory(usage []*inference.MemoryUsage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memory = usage
}

// Close gives the record back: Registry.Remove.
func (m *Model) Close() { m.registry.Remove(m) }

// span is the time between two of a request's timestamps, 0 where one is missing.
func span(from, to int64) uint64 {
	if from == 0 || to < from {
		return 0
	}
	return uint64(to - from)
}

func took64(ns int64) uint64 { return uint64(max(ns, 0)) }

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }
