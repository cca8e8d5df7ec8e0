package stats

// LimitFigures are those of the limits on callers at one moment.
type LimitFigures struct {
	Limits       []LimitRefusals
	Rules        int // of the file
	Meters       int // callers and models that are measured now
	Shared       bool
	Connected    bool // Redis answers
	Asked        uint64
	Failed, Late uint64
	Foreign      uint64 // answers for limits whose own key holds what no gateway wrote
}

// LimitRefusals are those of one limit of one rule.
type LimitRefusals struct {
	Rule, Kind, Reason string
	Refused, Shadowed  uint64
}

// Limits is the Source of the limits on callers.
func Limits(figures func() LimitFigures) Source {
	return func(gauge, counter func(name, help string, v float64, labels ...string)) {
		f := figures()
		f.write(gauge, counter)
	}
}

func (f *LimitFigures) write(gauge, counter func(name, help string, v float64, labels ...string)) {
	for i := range f.Limits {
		l := &f.Limits[i]
		counter("sluice_limit_refusals_total", "Calls that a limit on callers refused, by rule.", float64(l.Refused),
			"rule", l.Rule, "limit", l.Kind, "reason", l.Reason)
		counter("sluice_limit_shadow_refusals_total", "Calls that a limit in shadow would have refused, by rule.",
			float64(l.Shadowed), "rule", l.Rule, "limit", l.Kind, "reason", l.Reason)
	}
	gauge("sluice_limit_rules", "Rules of the limits file.", float64(f.Rules))
	gauge("sluice_limit_meters", "Meters of callers, models and rules that are in use.", float64(f.Meters))
	if !f.Shared {
		return
	}
	connected := 0.0
	if f.Connected {
		connected = 1
	}
	gauge("sluice_limit_redis_up", "1 where limits are shared through Redis, 0 where the gateway limits alone.", connected)
	counter("sluice_limit_redis_exchanges_total", "Exchanges with Redis for limits.", float64(f.Asked))
	counter("sluice_limit_redis_failures_total", "Exchanges with Redis that failed.", float64(f.Failed))
	counter("sluice_limit_redis_late_total", "Calls that did not wait for Redis any longer.", float64(f.Late))
	counter("sluice_limit_redis_foreign_keys_total",
		"Answers of Redis for limits whose own key held a value that no gateway writes.", float64(f.Foreign))
}
