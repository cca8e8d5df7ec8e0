package flags

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// traceFlags are --trace-config and the deprecated flags, until finish puts them
// together: --trace-config goes before the others.
type traceFlags struct {
	config, old struct {
		level     infer.TraceLevel
		off       bool // an explicit OFF, which wins over every level
		levels    bool // some level is given
		rate      *uint32
		count     *int32
		file      *string
		frequency *uint32
	}
	spans otelFlags
}

func (s *Serve) tracing() []flag {
	return []flag{
		{name: "trace-config", arg: "string,string=string", repeat: true, help: "A setting of the trace extension: level=OFF|TIMESTAMPS|TENSORS " +
			"(several may be given), rate=N (every N'th request is traced; default 1000), count=N (that many traces; default -1, no bound), " +
			"mode=triton|opentelemetry; triton,file=PATH (where traces go; without it nothing is traced) and triton,log-frequency=N (a file PATH.<idx> " +
			"for each N traces; default 0, all in one); opentelemetry,url=URL (of an OTLP collector; default " + tracing.DefaultURL + "), " +
			"opentelemetry,resource=KEY=VALUE, opentelemetry,bsp_max_queue_size=N (default 2048), opentelemetry,bsp_schedule_delay=MS " +
			"(default 5000), opentelemetry,bsp_max_export_batch_size=N (default 512), opentelemetry,baggage=KEY (a member of callers' baggage " +
			"that becomes an attribute). The OTEL_… variables of OpenTelemetry count too.", set: s.traceConfig},
	}
}

// traceConfig reads `<setting>=<value>` or `<mode>,<setting>=<value>`.
// Source of the texts: ParseTraceConfigOption of the original.
func (s *Serve) traceConfig(v string) error {
	mode, setting, ok := strings.Cut(v, ",")
	if at := strings.Index(v, "="); !ok || at >= 0 && at < len(mode) {
		mode, setting = "", v
	} else if mode == "" {
		return fmt.Errorf("No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or <setting>=<value>. Got %s", v)
	} else if err := traceMode(mode, new(string)); err != nil {
		return err
	}
	mode = strings.ToLower(mode)
	name, value, ok := strings.Cut(setting, "=")
	if !ok || name == "" || value == "" {
		return fmt.Errorf("--trace-config option format is '<trace mode>,<setting>=<value>'. Got %s", v)
	}
	c := &s.trace.config
	switch {
	case mode == "" && name == "level":
		return traceLevel(value, &c.level, &c.off, &c.levels)
	case mode == "" && name == "rate":
		return into(&c.rate, value, 0, math.MaxUint32)
	case mode == "" && name == "count":
		return into(&c.count, value, -1, math.MaxInt32)
	case mode == "" && name == "mode":
		return traceMode(value, &s.trace.spans.mode)
	case mode == tracing.ModeOpenTelemetry:
		return s.trace.spans.set(name, value)
	case mode != "" && name == "file":
		c.file = &value
		return nil
	case mode != "" && name == "log-frequency":
		return into(&c.frequency, value, 0, math.MaxUint32)
	case mode == "":
		return fmt.Errorf("no setting '%s'; there are level, rate, count, mode, and triton,file and triton,log-frequency", name)
	}
	return fmt.Errorf("mode triton has no setting '%s'; there are file and log-frequency", name)
}

// traceMode reads a mode.
func traceMode(v string, mode *string) error {
	*mode = strings.ToLower(v)
	switch *mode {
	case tracing.Mode, tracing.ModeOpenTelemetry:
		return nil
	}
	return fmt.Errorf("invalid value for trace mode option: %s. Available options are \"triton\" and \"opentelemetry\"", *mode)
}

// traceLevel reads one level. Source: ParseTraceLevelOption of the original.
func traceLevel(v string, level *infer.TraceLevel, off, given *bool) error {
	switch strings.ToLower(v) {
	case "off", "false":
		*off = true
	case "timestamps", "true", "on", "min", "max":
		*level |= infer.TraceTimestamps
	case "tensors":
		*level |= infer.TraceTensors
	default:
		return fmt.Errorf("invalid value for trace level option: %s", strings.ToLower(v))
	}
	*given = true
	return nil
}

// into reads a whole number of [low, high]. Source of the texts: ParseOption of the
// original, which takes a negative rate or frequency for a huge one.
func into[T uint32 | int32](p **T, v string, low, high int64) error {
	n, err := strconv.ParseInt(v, 10, 64)
	switch {
	case err != nil && !strings.Contains(err.Error(), "range"):
		return fmt.Errorf("Invalid option value. Got %s", v)
	case err != nil || n < low || n > high:
		return fmt.Errorf("Provided option value is out of bound. Got %s", v)
	}
	t := T(n)
	*p = &t
	return nil
}

// deprecatedTracing are the flags of before --trace-config.
func (s *Serve) deprecatedTracing() []flag {
	o := &s.trace.old
	old := func(name, arg, instead string, set func(string) error) flag {
		return flag{name: name, arg: arg, help: "Use --trace-config " + instead + ".", repeat: name == "trace-level", set: func(v string) error {
			notice := fmt.Sprintf("--%s is deprecated: use --trace-config %s", name, instead)
			if !slices.Contains(s.Notices, notice) {
				s.Notices = append(s.Notices, notice)
			}
			return set(v)
		}}
	}
	return []flag{
		old("trace-file", "string", "triton,file=<path>", func(v string) error { o.file = &v; return nil }),
		old("trace-level", "string", "level=<OFF|TIMESTAMPS|TENSORS>", func(v string) error {
			return traceLevel(v, &o.level, &o.off, &o.levels)
		}),
		old("trace-rate", "integer", "rate=<N>", func(v string) error { return into(&o.rate, v, 0, math.MaxUint32) }),
		old("trace-count", "integer", "count=<N>", func(v string) error { return into(&o.count, v, -1, math.MaxInt32) }),
		old("trace-log-frequency", "integer", "triton,log-frequency=<N>", func(v string) error { return into(&o.frequency, v, 0, math.MaxUint32) }),
	}
}

// finishTrace puts the flags together.
func (s *Serve) finishTrace() {
	c, o, t := &s.trace.config, &s.trace.old, &s.Config.Trace
	t.Level = c.level | o.level
	if c.off || o.off {
		t.Level = 0
	}
	s.overrides("level", o.levels && c.levels)
	t.Rate = choose(t.Rate, o.rate, c.rate)
	s.overrides("rate", o.rate != nil && c.rate != nil)
	t.Count = choose(t.Count, o.count, c.count)
	s.overrides("count", o.count != nil && c.count != nil)
	t.File = choose(t.File, o.file, c.file)
	s.overrides("file", o.file != nil && c.file != nil)
	t.LogFrequency = choose(t.LogFrequency, o.frequency, c.frequency)
	s.overrides("log-frequency", o.frequency != nil && c.frequency != nil)
}

// noticeTrace notices settings with which nothing would be traced: the original is
// silent about them.
func (s *Serve) noticeTrace() {
	switch t := &s.Config.Trace; {
	case t.Level == 0:
	case t.File == "":
		s.Notices = append(s.Notices, "nothing is traced: --trace-config triton,file=<path> is not given")
	case t.Rate == 0:
		s.Notices = append(s.Notices, "nothing is traced: --trace-config rate is 0")
	}
}

func (s *Serve) overrides(name string, both bool) {
	if both {
		s.Notices = append(s.Notices, fmt.Sprintf("--trace-%s is overridden by the %s of --trace-config", name, name))
	}
}

// choose is the last value that is given.
func choose[T any](def T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			def = *v
		}
	}
	return def
}
