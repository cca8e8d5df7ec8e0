package load

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/xds/orca"
)

// Format is how a report stands in an answer.
// Source: the custom metrics proposal of Envoy (header endpoint-load-metrics with TEXT,
// JSON or BIN) and the original's request header endpoint-load-metrics-format.
type Format uint8

// The formats.
const (
	None Format = iota
	Text
	JSON
	Binary
)

// ParseFormat reads a format's name: text, json or bin in any case; "" and anything
// else is None with ok false, but for "off", which is None.
func ParseFormat(name string) (f Format, ok bool) {
	switch {
	case strings.EqualFold(name, "text"):
		return Text, true
	case strings.EqualFold(name, "json"):
		return JSON, true
	case strings.EqualFold(name, "bin"):
		return Binary, true
	}
	return None, strings.EqualFold(name, "off")
}

// busiest is how many models an answer names: a header must stay small.
const busiest = 8

// maxModels bounds the model versions of a report out of band.
const maxModels = 1024

// Report is the load at a moment, ready to go with an answer. It is never changed; what
// it is in each format is made when the first answer needs it.
type Report struct {
	load   *orcav3.OrcaLoadReport // of the whole gateway and its busiest models
	text   func() string
	json   func() string
	binary func() string
	header func() string // Binary's
}

func newReport(load *orcav3.OrcaLoadReport) *Report {
	r := &Report{load: load}
	r.text = sync.OnceValue(func() string { return "TEXT " + text(load) })
	r.json = sync.OnceValue(func() string { return "JSON " + document(load) })
	r.binary = sync.OnceValue(func() string {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(load)
		if err != nil { // of names that are no UTF-8 alone, and those are left out (plain)
			return ""
		}
		return string(raw)
	})
	r.header = sync.OnceValue(func() string { return "BIN " + base64.StdEncoding.EncodeToString([]byte(r.binary())) })
	return r
}

// Header is the value of the header endpoint-load-metrics in a format; "" for None.
func (r *Report) Header(f Format) string {
	switch f {
	case Text:
		return r.text()
	case JSON:
		return r.json()
	case Binary:
		return r.header()
	}
	return ""
}

// Binary is the value of the metadata endpoint-load-metrics-bin: the message's bytes.
func (r *Report) Binary() string { return r.binary() }

// total is what the gateway does as a whole.
func (s *sampler) total() figures {
	var t figures
	for _, k := range s.order {
		f := s.models[k]
		t.Waiting += f.Waiting
		t.Inflight += f.Inflight
		t.Busy += f.Busy
		t.Instances += f.Instances
		t.qps += f.qps
		t.eps += f.eps
		t.utilization = max(t.utilization, f.utilization)
	}
	return t
}

// life is what is said of the gateway beside its figures.
type life struct {
	started float64
	ready   bool
	machine Machine
}

// quiet is the rate of requests under which the averages say nothing any more. A reader
// that weighs gateways by requests for each utilization, as Envoy does, gets the ratio
// of the last busy time then: a rate of 0 it would call an error.
const quiet = 1e-3

// base is what every report has.
func (s *sampler) base(l life) *orcav3.OrcaLoadReport {
	t := s.total()
	switch {
	case t.qps >= quiet && t.utilization > 0:
		s.each = t.utilization / t.qps
	case s.each > 0:
		t.qps, t.utilization = quiet, quiet*s.each
	}
	return &orcav3.OrcaLoadReport{CpuUtilization: max(l.machine.CPU, 0), MemUtilization: min(max(l.machine.Memory, 0), 1),
		ApplicationUtilization: t.utilization, RpsFractional: t.qps, Eps: t.eps,
		NamedMetrics: map[string]float64{orca.QueueDepth: float64(t.Waiting), orca.Busy: float64(t.Busy),
			orca.Instances: float64(t.Instances), orca.Inflight: float64(t.Inflight)}}
}

// full is the report out of band: it names every model version.
func (s *sampler) full(l life) *orcav3.OrcaLoadReport {
	r := s.base(l)
	r.NamedMetrics[orca.Started] = l.started
	r.NamedMetrics[orca.Ready] = flag(l.ready)
	for _, k := range s.order[:min(len(s.order), maxModels)] {
		s.models[k].describe(r.NamedMetrics)
	}
	return r
}

// report is what goes with answers.
func (s *sampler) report(l life) *Report {
	short := s.base(l)
	for _, k := range s.busy() {
		short.NamedMetrics[orca.Key(orca.QueueDepth, k.name, k.version)] = float64(s.models[k].Waiting)
	}
	return newReport(short)
}

// busy are the busiest models that have anything to do, the busiest one first.
func (s *sampler) busy() []key {
	var keys []key
	for _, k := range s.order {
		if s.models[k].utilization > 0 && plain(k.name) {
			keys = append(keys, k)
		}
	}
	slices.SortStableFunc(keys, func(a, b key) int {
		return cmp.Compare(s.models[b].utilization, s.models[a].utilization)
	})
	return keys[:min(len(keys), busiest)]
}

// plain says that a model's name can stand in a header, in every format.
func plain(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == ',' || c == '=' || c == ':' || c == '"' || c == '\\' {
			return false
		}
	}
	return len(name) <= 128
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// errors is the share of requests that failed.
func (f *figures) errors() float64 {
	if f.qps <= 0 {
		return 0
	}
	return min(f.eps/f.qps, 1)
}

// describe adds a model version's metrics.
func (f *figures) describe(to map[string]float64) {
	set := func(metric string, v float64) { to[orca.Key(metric, f.Name, f.Version)] = v }
	set(orca.QueueDepth, float64(f.Waiting))
	set(orca.Instances, float64(f.Instances))
	for metric, v := range map[string]float64{orca.Busy: float64(f.Busy), orca.Inflight: float64(f.Inflight), orca.ServiceTime: f.service, orca.Errors: f.errors(),
		orca.Sequence: flag(f.Sequence), orca.Cache: flag(f.Cached)} {
		if v > 0 {
			set(metric, v)
		}
	}
}

// fields are a report's own fields in the order of their numbers.
func fields(r *orcav3.OrcaLoadReport) []struct {
	name  string
	value float64
} {
	return []struct {
		name  string
		value float64
	}{{"cpu_utilization", r.CpuUtilization}, {"mem_utilization", r.MemUtilization}, {"rps_fractional", r.RpsFractional},
		{"eps", r.Eps}, {"application_utilization", r.ApplicationUtilization}}
}

// text is a report as pairs; fields that are 0 are left out, as protobuf does.
func text(r *orcav3.OrcaLoadReport) string {
	var b strings.Builder
	pair := func(name string, v float64) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name + "=" + strconv.FormatFloat(v, 'g', 6, 64))
	}
	for _, f := range fields(r) {
		if f.value != 0 {
			pair(f.name, f.value)
		}
	}
	for _, name := range names(r) {
		pair("named_metrics."+name, r.NamedMetrics[name])
	}
	return b.String()
}

// document is a report with the names of the proto file, as the original writes it. All
// names in it are plain.
func document(r *orcav3.OrcaLoadReport) string {
	b := []byte{'{'}
	pair := func(name string, v float64) {
		if c := b[len(b)-1]; c != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"', ':')
		b = strconv.AppendFloat(b, v, 'g', 6, 64)
	}
	for _, f := range fields(r) {
		if f.value != 0 {
			pair(f.name, f.value)
		}
	}
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, `"named_metrics":{`...)
	for _, name := range names(r) {
		pair(name, r.NamedMetrics[name])
	}
	return string(append(b, "}}"...))
}

// names are the named metrics in order.
func names(r *orcav3.OrcaLoadReport) []string {
	names := make([]string, 0, len(r.NamedMetrics))
	for name := range r.NamedMetrics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
