package calls

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Bounds on the figures of models.
const (
	maxFamilies     = 512  // of all models
	maxModelSeries  = 1000 // of one loaded model version
	maxLabels       = 16
	maxLabelValue   = 256  // bytes
	maxHelp         = 1024 // bytes
	maxBuckets      = 64
	maxFamilyLength = 128
)

var (
	familyName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	reserved   = []string{"nv_", "sluice_", "go_", "process_", "promhttp_"} // prefixes of the gateway's own
)

// figures are the metrics of models, by family. A family, and a series, is there as long as a
// model that has changed it is loaded and has not deleted it; models that say the same family share it.
type figures struct {
	mu       *sync.Mutex
	families map[string]*family          // guarded by mu
	owned    map[string]map[*series]bool // guarded by mu: by owner
}

// family is what all series of one name have in common.
type family struct {
	name, help string
	kind       worker.MetricUpdate_Kind
	labels     []string // ascending
	buckets    []float64
	series     map[string]*series // by the labels' values
}

type series struct {
	family *family
	key    string
	desc   *prometheus.Desc
	owners int

	value  float64  // of a counter or gauge; of a histogram the sum
	count  uint64   // of a histogram
	counts []uint64 // of a histogram: by bucket, each alone
}

func newFigures() figures {
	return figures{mu: &sync.Mutex{}, families: map[string]*family{}, owned: map[string]map[*series]bool{}}
}

// update makes a change for a model. An error says what contradicts the family, or a bound.
func (f *figures) update(owner string, u *worker.MetricUpdate) error {
	value, err := valueOf(u)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.GetDelete() {
		f.deleteLocked(owner, u)
		return nil
	}
	s, err := f.findLocked(owner, u)
	if err != nil {
		return err
	}
	switch {
	case u.GetDeclare():
	case u.GetKind() == worker.MetricUpdate_HISTOGRAM:
		at, _ := slices.BinarySearch(s.family.buckets, value)
		if at < len(s.counts) {
			s.counts[at]++
		}
		s.count++
		s.value += value
	case isSet(u):
		s.value = value
	default:
		s.value += value
	}
	return nil
}

func isSet(u *worker.MetricUpdate) bool {
	_, ok := u.GetChange().(*worker.MetricUpdate_Set)
	return ok
}

// valueOf checks that the change is one that the kind knows.
func valueOf(u *worker.MetricUpdate) (float64, error) {
	var v float64
	ok := false
	switch c := u.GetChange().(type) {
	case *worker.MetricUpdate_Set:
		v, ok = c.Set, u.GetKind() == worker.MetricUpdate_GAUGE
	case *worker.MetricUpdate_Add:
		v, ok = c.Add, u.GetKind() == worker.MetricUpdate_GAUGE || u.GetKind() == worker.MetricUpdate_COUNTER && c.Add >= 0
	case *worker.MetricUpdate_Declare, *worker.MetricUpdate_Delete:
		ok = true
	case *worker.MetricUpdate_Observe:
		v, ok = c.Observe, u.GetKind() == worker.MetricUpdate_HISTOGRAM
	}
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, infer.Errorf(infer.InvalidArg, "metric '%s': a %s can't change so, by %v", u.GetFamily(),
			strings.ToLower(u.GetKind().String()), v)
	}
	return v, nil
}

// findLocked is the series of an update, made where it is the first.
func (f *figures) findLocked(owner string, u *worker.MetricUpdate) (*series, error) {
	fam := f.families[u.GetFamily()]
	labels := slices.Sorted(maps.Keys(u.GetLabels()))
	if fam == nil {
		if err := checkFamily(u, labels); err != nil {
			return nil, err
		}
		if len(f.families) >= maxFamilies {
			return nil, infer.Refusef(infer.ResourceExhausted, infer.ReasonMemory,
				"metric '%s': models have %d families already", u.GetFamily(), maxFamilies)
		}
		fam = &family{name: u.GetFamily(), help: u.GetHelp(), kind: u.GetKind(), labels: labels,
			buckets: u.GetBuckets(), series: map[string]*series{}}
	} else if fam.kind != u.GetKind() || !slices.Equal(fam.labels, labels) ||
		len(u.GetBuckets()) > 0 && !slices.Equal(fam.buckets, u.GetBuckets()) {
		return nil, infer.Errorf(infer.InvalidArg,
			"metric '%s' is a %s with the labels %q; this is a %s with %q, or has other buckets", fam.name,
			strings.ToLower(fam.kind.String()), fam.labels, strings.ToLower(u.GetKind().String()), labels)
	}
	key, err := keyOf(u, labels)
	if err != nil {
		return nil, err
	}
	s := fam.series[key]
	if s != nil && f.owned[owner][s] {
		return s, nil
	}
	if len(f.owned[owner]) >= maxModelSeries {
		return nil, infer.Refusef(infer.ResourceExhausted, infer.ReasonMemory,
			"metric '%s': the model has %d series already", fam.name, maxModelSeries)
	}
	if s == nil {
		desc := prometheus.NewDesc(fam.name, fam.help, nil, maps.Clone(u.GetLabels()))
		s = &series{family: fam, key: key, desc: desc, counts: make([]uint64, len(fam.buckets))}
		fam.series[key] = s
		f.families[fam.name] = fam
	}
	s.owners++
	if f.owned[owner] == nil {
		f.owned[owner] = map[*series]bool{}
	}
	f.owned[owner][s] = true
	return s, nil
}

// checkFamily looks at what the first update of a family declares.
func checkFamily(u *worker.MetricUpdate, labels []string) error {
	name := u.GetFamily()
	if !familyName.MatchString(name) || len(name) > maxFamilyLength {
		return infer.Errorf(infer.InvalidArg, "metric %q: that is no name of a metric",
			name[:min(len(name), maxFamilyLength)])
	}
	for _, prefix := range reserved {
		if strings.HasPrefix(name, prefix) {
			return infer.Errorf(infer.InvalidArg, "metric '%s': names that begin with '%s' are the server's own", name, prefix)
		}
	}
	if !utf8.ValidString(u.GetHelp()) || len(u.GetHelp()) > maxHelp {
		return infer.Errorf(infer.InvalidArg, "metric '%s': its help has %d bytes, or is no text; the most is %d",
			name, len(u.GetHelp()), maxHelp)
	}
	for _, l := range labels {
		if !labelName.MatchString(l) || strings.HasPrefix(l, "__") || l == "le" || l == "quantile" ||
			len(labels) > maxLabels || len(l) > maxLabelValue {
			return infer.Errorf(infer.InvalidArg, "metric '%s': label %q can't be one, or it has more than %d", name,
				l[:min(len(l), maxLabelValue)], maxLabels)
		}
	}
	b := u.GetBuckets()
	histogram := u.GetKind() == worker.MetricUpdate_HISTOGRAM
	if histogram != (len(b) > 0) || len(b) > maxBuckets {
		return infer.Errorf(infer.InvalidArg,
			"metric '%s': a %s with %d buckets; a histogram has 1 to %d, others have none", name,
			strings.ToLower(u.GetKind().String()), len(b), maxBuckets)
	}
	for i := range b {
		if math.IsNaN(b[i]) || math.IsInf(b[i], 0) || i > 0 && b[i] <= b[i-1] {
			return infer.Errorf(infer.InvalidArg, "metric '%s': the buckets %v don't ascend", name, b)
		}
	}
	return nil
}

func keyOf(u *worker.MetricUpdate, labels []string) (string, error) {
	var key strings.Builder
	for _, l := range labels {
		v := u.GetLabels()[l]
		if len(v) > maxLabelValue || !utf8.ValidString(v) {
			return "", infer.Errorf(infer.InvalidArg,
				"metric '%s': the value of label '%s' has %d bytes, or is no text; the most is %d", u.GetFamily(), l, len(v),
				maxLabelValue)
		}
		key.WriteString(strconv.Quote(v))
	}
	return key.String(), nil
}

// deleteLocked takes a series from a model, and away where no other has it. One that is not there, as after a
// bound has refused it, is nothing.
func (f *figures) deleteLocked(owner string, u *worker.MetricUpdate) {
	fam := f.families[u.GetFamily()]
	if fam == nil {
		return
	}
	key, err := keyOf(u, slices.Sorted(maps.Keys(u.GetLabels())))
	s := fam.series[key]
	if err != nil || s == nil || !f.owned[owner][s] {
		return
	}
	delete(f.owned[owner], s)
	s.releaseLocked(f)
}

// releaseLocked takes an owner from a series, which goes with its last one.
func (s *series) releaseLocked(f *figures) {
	if s.owners--; s.owners > 0 {
		return
	}
	delete(s.family.series, s.key)
	if len(s.family.series) == 0 {
		delete(f.families, s.family.name)
	}
}

// forget takes away what a model alone has changed.
func (f *figures) forget(owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.owned[owner] {
		s.releaseLocked(f)
	}
	delete(f.owned, owner)
}

// Describe is prometheus.Collector: families come and go, so nothing is described in advance.
func (c *Calls) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.figures.metrics() {
		out <- m
	}
}

func (f *figures) metrics() (all []prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fam := range f.families {
		for _, s := range fam.series {
			all = append(all, s.metric())
		}
	}
	return all
}

func (s *series) metric() prometheus.Metric {
	switch s.family.kind {
	case worker.MetricUpdate_HISTOGRAM:
		below, sum := map[float64]uint64{}, uint64(0)
		for i, n := range s.counts {
			sum += n
			below[s.family.buckets[i]] = sum
		}
		return prometheus.MustNewConstHistogram(s.desc, s.count, s.value, below)
	case worker.MetricUpdate_GAUGE:
		return prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, s.value)
	}
	return prometheus.MustNewConstMetric(s.desc, prometheus.CounterValue, s.value)
}
