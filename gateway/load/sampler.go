package load

import (
	"math"
	"time"
)

// Model is what one model version has going on at a moment.
type Model struct {
	Name, Version string
	Waiting       int // requests that wait for an instance
	Inflight      int // requests taken and not answered, waiting ones too
	Busy          int // instances that have a batch
	Instances     int // in service; 0: the model has none of its own, as an ensemble
	Sequence      bool
	Cached        bool // its answers are kept in this gateway

	// What has been counted since the model was loaded.
	Requests uint64        // answered, well or not
	Failed   uint64        // of them, by no fault of the caller
	Executed uint64        // requests that were in a batch which ended
	Compute  time.Duration // of all batches that ended
}

// Machine is what the host has going on, as shares from 0 to 1; negative: not known.
type Machine struct{ CPU, Memory float64 }

// smooth is the time in which an average forgets two thirds of what was.
const smooth = time.Second

// forget is how long a measured cost of requests holds.
const forget = 10 * time.Second

// key names a model version in the sampler.
type key struct{ name, version string }

// figures are what a sampler makes of what it saw.
type figures struct {
	Model       // as seen last
	utilization float64
	service     float64 // seconds of an instance for each request; 0: not known yet
	qps, eps    float64
	age         time.Duration // since service was measured
	seen        bool
}

// sampler averages what it is shown.
type sampler struct {
	last   time.Duration // of the last look; 0: none yet
	each   float64       // utilization for each request in a second, while there were requests; 0: never
	models map[key]*figures
	order  []key // as shown last
}

// look takes in what there is at now, which grows.
func (s *sampler) look(now time.Duration, models []Model) {
	if s.models == nil {
		s.models = map[key]*figures{}
	}
	elapsed := now - s.last
	if s.last == 0 {
		elapsed = 0
	}
	s.last = now
	s.order = s.order[:0]
	for _, f := range s.models {
		f.seen = false
	}
	for i := range models {
		m := &models[i]
		k := key{m.Name, m.Version}
		f := s.models[k]
		if f == nil {
			f = &figures{Model: *m}
			s.models[k] = f
			f.take(m, 0)
		} else {
			f.take(m, elapsed)
		}
		f.seen = true
		s.order = append(s.order, k)
	}
	for k, f := range s.models {
		if !f.seen {
			delete(s.models, k)
		}
	}
}

// take averages one model's figures over the time since the last look.
func (f *figures) take(m *Model, elapsed time.Duration) {
	old := f.Model
	f.Model = *m
	now := 0.0
	if m.Instances > 0 {
		now = float64(m.Busy+m.Waiting) / float64(m.Instances)
	}
	if elapsed <= 0 {
		f.utilization = now
		return
	}
	keep := math.Exp(-elapsed.Seconds() / smooth.Seconds())
	f.utilization = blend(f.utilization, now, keep)
	f.qps = blend(f.qps, grown(old.Requests, m.Requests)/elapsed.Seconds(), keep)
	f.eps = blend(f.eps, grown(old.Failed, m.Failed)/elapsed.Seconds(), keep)
	f.served(old, elapsed)
}

// served averages what a request costs. Executions may be seldom, so each weighs by the
// time since the one before; what is long ago says nothing any more.
func (f *figures) served(old Model, elapsed time.Duration) {
	f.age += elapsed
	n := grown(old.Executed, f.Executed)
	switch {
	case n > 0 && f.Compute >= old.Compute:
		each := (f.Compute - old.Compute).Seconds() / n
		if f.service == 0 {
			f.service = each
		} else {
			f.service = blend(f.service, each, math.Exp(-f.age.Seconds()/smooth.Seconds()))
		}
		f.age = 0
	case f.age > forget:
		f.service = 0
	}
}

func blend(old, now, keep float64) float64 {
	v := old*keep + now*(1-keep)
	if v < 1e-6 { // forgotten; and no denormal numbers in a header
		return 0
	}
	return v
}

// grown is how much a counter grew; one that shrank began anew.
func grown(old, now uint64) float64 {
	if now < old {
		return float64(now)
	}
	return float64(now - old)
}
