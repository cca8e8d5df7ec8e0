// Package orca is how gateways word their load in ORCA reports, and how whoever
// balances between them reads it: the names of the metrics, and a report as figures.
//
// A report is one message, xds.data.orca.v3.OrcaLoadReport. What every reader
// understands stands in its own fields; what is sluice's stands in named_metrics, with a
// metric of one model version named "sluice.queue_depth/MODEL/VERSION".
package orca

import (
	"strings"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
)

// The named metrics. Each but Started, Inflight and Ready is also there for each model
// version; ServiceTime, Errors, Sequence and Cache are there only so.
const (
	QueueDepth  = "sluice.queue_depth"  // requests that wait for an instance
	Busy        = "sluice.busy"         // instances that have a batch
	Instances   = "sluice.instances"    // instances in service
	Inflight    = "sluice.inflight"     // requests taken and not answered
	ServiceTime = "sluice.service_time" // seconds of an instance that one request costs
	Errors      = "sluice.errors"       // share of the requests that failed lately by no fault of their callers
	Sequence    = "sluice.sequence"     // 1: its requests belong to sequences
	Cache       = "sluice.cache"        // 1: its answers are kept in this gateway
	Started     = "sluice.started"      // Unix seconds at which the gateway started: which life it is in
	Ready       = "sluice.ready"        // 1: the gateway is ready
)

// Key is the name of a metric of one model version.
func Key(metric, model, version string) string { return metric + "/" + model + "/" + version }

// Split takes a Key apart. ok is false for a metric of the whole gateway.
func Split(key string) (metric, model, version string, ok bool) {
	metric, rest, found := strings.Cut(key, "/")
	i := strings.LastIndexByte(rest, '/')
	if !found || i <= 0 {
		return key, "", "", false
	}
	return metric, rest[:i], rest[i+1:], true
}

// Gateway is what a report says of a gateway.
type Gateway struct {
	Started     float64 // Unix seconds; 0: not said
	Ready       bool
	Utilization float64 // of its busiest model: 1 is all instances busy and nobody waiting
	Models      map[string]map[string]*Model
}

// Model is what it says of one model version.
type Model struct {
	Waiting, Busy, Instances float64
	Inflight                 float64
	Service                  float64 // seconds of an instance for each request; 0: not known yet
	Errors                   float64 // 0 to 1
	Sequence, Cache          bool
}

// Read turns a report into figures. Metrics that are not known are passed over, so that
// newer gateways can say more.
func Read(r *orcav3.OrcaLoadReport) Gateway {
	g := Gateway{Started: r.GetNamedMetrics()[Started], Ready: r.GetNamedMetrics()[Ready] > 0,
		Utilization: r.GetApplicationUtilization(), Models: map[string]map[string]*Model{}}
	for key, v := range r.GetNamedMetrics() {
		metric, model, version, ok := Split(key)
		if !ok {
			continue
		}
		versions := g.Models[model]
		if versions == nil {
			versions = map[string]*Model{}
			g.Models[model] = versions
		}
		m := versions[version]
		if m == nil {
			m = &Model{}
			versions[version] = m
		}
		m.set(metric, v)
	}
	return g
}

func (m *Model) set(metric string, v float64) {
	switch metric {
	case QueueDepth:
		m.Waiting = v
	case Busy:
		m.Busy = v
	case Instances:
		m.Instances = v
	case Inflight:
		m.Inflight = v
	case ServiceTime:
		m.Service = v
	case Errors:
		m.Errors = v
	case Sequence:
		m.Sequence = v > 0
	case Cache:
		m.Cache = v > 0
	}
}
