package flags

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
	"github.com/sluice-serve/sluice/tracing/otlp"
)

// otelFlags are the settings `--trace-config opentelemetry,…`.
type otelFlags struct {
	mode                string // of mode=; "": not given
	url                 string
	resource, baggage   []string
	queue, batch, delay *uint32
}

// set reads one setting.
// Source: ParseTraceConfigOption of the original, and its TraceManager, which reads the
// numbers when it starts.
func (o *otelFlags) set(name, value string) error {
	switch name {
	case "url":
		o.url = value
	case "resource":
		if key, _, ok := strings.Cut(value, "="); !ok || key == "" {
			return fmt.Errorf("opentelemetry,resource is <key>=<value>. Got %s", value)
		}
		o.resource = append(o.resource, value)
	case "baggage":
		o.baggage = append(o.baggage, value)
	case "bsp_max_queue_size":
		return into(&o.queue, value, 1, math.MaxInt32)
	case "bsp_max_export_batch_size":
		return into(&o.batch, value, 1, math.MaxInt32)
	case "bsp_schedule_delay":
		return into(&o.delay, value, 0, math.MaxInt32)
	default:
		return fmt.Errorf("mode opentelemetry has no setting '%s'; there are url, resource, baggage, bsp_max_queue_size, "+
			"bsp_schedule_delay and bsp_max_export_batch_size", name)
	}
	return nil
}

// otelEnv reads the variables of OpenTelemetry. Values that can't be used are noticed and
// passed over, as its specification asks.
type otelEnv struct {
	env  func(string) (string, bool)
	note func(format string, args ...any)
}

func (e *otelEnv) get(names ...string) string {
	for _, name := range names {
		if v, ok := e.env(name); ok && strings.TrimSpace(v) != "" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// finishSpans decides on the mode and puts the settings of flags and environment
// together; flags go before.
func (s *Serve) finishSpans(env func(string) (string, bool)) {
	o := &s.trace.spans
	e := &otelEnv{env: env, note: func(format string, args ...any) { s.Notices = append(s.Notices, fmt.Sprintf(format, args...)) }}
	mode := o.mode
	if mode == "" && s.Config.Trace.File == "" && e.asked() {
		mode = tracing.ModeOpenTelemetry
	}
	if mode != tracing.ModeOpenTelemetry {
		s.noticeTrace()
		return
	}
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") || e.get("OTEL_TRACES_EXPORTER") == "none" {
		e.note("nothing is traced: OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER turns OpenTelemetry off")
		s.Config.Trace.Level = 0
	} else if c, old := &s.trace.config, &s.trace.old; !c.levels && !old.levels {
		s.Config.Trace.Level = infer.TraceTimestamps
	}
	x := tracing.DefaultExport()
	x.URL, x.Baggage = o.url, o.baggage
	e.export(&x)
	e.resource(&x)
	x.Resource = append(x.Resource, o.resource...)
	e.sampler(&x, s.trace.config.rate != nil || s.trace.old.rate != nil)
	x.MaxQueue = int(choose(uint32(x.MaxQueue), o.queue))
	x.MaxBatch = int(choose(uint32(x.MaxBatch), o.batch))
	x.ScheduleDelay = time.Duration(choose(uint32(x.ScheduleDelay.Milliseconds()), o.delay)) * time.Millisecond
	s.Config.Trace.Export = &x
	if s.Config.Trace.File != "" {
		e.note("--trace-config triton,file is not used in mode opentelemetry")
	}
}

// asked says that the environment asks for spans by itself.
func (e *otelEnv) asked() bool {
	return e.get("OTEL_TRACES_EXPORTER") == "otlp" || e.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") != ""
}

// export reads what the exporter is told. Endpoint, headers, certificates, compression
// and the timeout of one try the exporter's client reads itself.
func (e *otelEnv) export(x *tracing.Export) {
	switch p := e.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p {
	case "":
	case tracing.ProtocolGRPC, tracing.ProtocolHTTP, tracing.ProtocolJSON:
		x.Protocol = p
	default:
		e.note("OTEL_EXPORTER_OTLP_PROTOCOL is '%s', which is not grpc, http/protobuf or http/json; it is %s", p, x.Protocol)
	}
	if v := e.get("OTEL_TRACES_EXPORTER"); v != "" && v != "otlp" && v != "none" {
		e.note("OTEL_TRACES_EXPORTER is '%s', which is not otlp or none; it is otlp", v)
	}
	whole := func(name string, low int64, to func(int64)) {
		v := e.get(name)
		if v == "" {
			return
		}
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < low {
			e.note("%s is '%s', not a whole number of at least %d; it is not used", name, v, low)
			return
		}
		to(n)
	}
	whole("OTEL_BSP_MAX_QUEUE_SIZE", 1, func(n int64) { x.MaxQueue = int(n) })
	whole("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, func(n int64) { x.MaxBatch = int(n) })
	whole("OTEL_BSP_SCHEDULE_DELAY", 0, func(n int64) { x.ScheduleDelay = time.Duration(n) * time.Millisecond })
	whole("OTEL_BSP_EXPORT_TIMEOUT", 1, func(n int64) { x.ExportTimeout = time.Duration(n) * time.Millisecond })
	for name := range strings.SplitSeq(e.get("OTEL_PROPAGATORS"), ",") {
		if name = strings.TrimSpace(name); !slices.Contains([]string{"", "none", "tracecontext", "baggage"}, name) {
			e.note("OTEL_PROPAGATORS names '%s'; there are tracecontext and baggage", name)
		}
	}
	if v := e.get("OTEL_PROPAGATORS"); v != "" {
		x.NoParent = !strings.Contains(v, "tracecontext")
		if !strings.Contains(v, "baggage") {
			x.Baggage = nil
		}
	}
}

func (e *otelEnv) resource(x *tracing.Export) {
	if v := e.get("OTEL_RESOURCE_ATTRIBUTES"); v != "" {
		attributes, ok := otlp.Unescape(v)
		if !ok {
			e.note("OTEL_RESOURCE_ATTRIBUTES is not of the form key=value,key=value; it is not used")
		}
		x.Resource = append(x.Resource, attributes...)
	}
	if v := e.get("OTEL_SERVICE_NAME"); v != "" {
		x.Resource = append(x.Resource, "service.name="+v)
	}
}

// sampler reads OTEL_TRACES_SAMPLER. A rate that a flag gives goes before what it says of
// calls without a trace.
func (e *otelEnv) sampler(x *tracing.Export, rated bool) {
	name := e.get("OTEL_TRACES_SAMPLER")
	switch name {
	case "":
		return
	case "always_on", "always_off", "traceidratio":
		x.OwnRoot = true
	case "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio":
	default:
		e.note("OTEL_TRACES_SAMPLER is '%s', which there is not here; --trace-config rate counts", name)
		return
	}
	if rated {
		return
	}
	switch name = strings.TrimPrefix(name, "parentbased_"); name {
	case "always_on":
		x.Root = tracing.RootOn
	case "always_off":
		x.Root = tracing.RootOff
	default:
		x.Root, x.Ratio = tracing.RootRatio, 1
		v := e.get("OTEL_TRACES_SAMPLER_ARG")
		if v == "" {
			return
		}
		ratio, err := strconv.ParseFloat(v, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			e.note("OTEL_TRACES_SAMPLER_ARG is '%s', not a number within 0 and 1; it is 1", v)
			return
		}
		x.Ratio = ratio
	}
}
