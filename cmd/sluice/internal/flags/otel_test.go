package flags

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// with is the default export with changes.
func with(change func(*tracing.Export)) *tracing.Export {
	x := tracing.DefaultExport()
	if change != nil {
		change(&x)
	}
	return &x
}

var otelRows = []struct {
	name  string
	flags string
	env   map[string]string
	want  *tracing.Export // nil: the mode is triton
	level infer.TraceLevel
	note  string // part of a notice; "": there is none
}{
	{name: "nothing"},
	{name: "the mode alone traces", flags: "--trace-config=mode=OpenTelemetry", want: with(nil), level: infer.TraceTimestamps},
	{name: "an explicit level counts", flags: "--trace-config=mode=opentelemetry --trace-config=level=OFF", want: with(nil)},
	{name: "settings do not choose the mode", flags: "--trace-config=opentelemetry,url=http://c:1/v1/traces"},
	{name: "flags", flags: "--trace-config=mode=opentelemetry --trace-config=opentelemetry,url=http://c:1/v1/traces " +
		"--trace-config=opentelemetry,resource=a=b=c --trace-config=opentelemetry,bsp_max_queue_size=3 " +
		"--trace-config=opentelemetry,bsp_schedule_delay=4 --trace-config=opentelemetry,bsp_max_export_batch_size=5 " +
		"--trace-config=opentelemetry,baggage=team",
		want: with(func(x *tracing.Export) {
			x.URL, x.Resource, x.MaxQueue, x.MaxBatch, x.ScheduleDelay = "http://c:1/v1/traces", []string{"a=b=c"}, 3, 5, 4*time.Millisecond
			x.Baggage = []string{"team"}
		}), level: infer.TraceTimestamps},
	{name: "an endpoint in the environment", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SERVICE_NAME": "svc", "OTEL_RESOURCE_ATTRIBUTES": "k=a%20b, service.name=other"},
		want: with(func(x *tracing.Export) {
			x.Protocol, x.Resource = "grpc", []string{"k=a b", "service.name=other", "service.name=svc"}
		}), level: infer.TraceTimestamps},
	{name: "the environment does not undo a mode", flags: "--trace-config=mode=triton",
		env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}},
	{name: "nor a file", flags: "--trace-config=triton,file=f", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}},
	{name: "disabled", flags: "--trace-config=mode=opentelemetry --trace-config=level=TIMESTAMPS", env: map[string]string{"OTEL_SDK_DISABLED": "TRUE"},
		want: with(nil), note: "OTEL_SDK_DISABLED"},
	{name: "the protocol of traces goes before", flags: "--trace-config=mode=opentelemetry", level: infer.TraceTimestamps,
		env:  map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
		want: with(func(x *tracing.Export) { x.Protocol = "http/json" })},
	{name: "the batch processor", flags: "--trace-config=mode=opentelemetry --trace-config=opentelemetry,bsp_max_queue_size=9", level: infer.TraceTimestamps,
		env: map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": "1", "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_BSP_EXPORT_TIMEOUT": "200",
			"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "x"}, note: "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 'x'",
		want: with(func(x *tracing.Export) {
			x.MaxQueue, x.ScheduleDelay, x.ExportTimeout = 9, 100*time.Millisecond, 200*time.Millisecond
		})},
	{name: "ratio", flags: "--trace-config=mode=opentelemetry", level: infer.TraceTimestamps,
		env:  map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
		want: with(func(x *tracing.Export) { x.Root, x.Ratio = tracing.RootRatio, 0.25 })},
	{name: "not parent-based", flags: "--trace-config=mode=opentelemetry", level: infer.TraceTimestamps,
		env: map[string]string{"OTEL_TRACES_SAMPLER": "always_on"}, want: with(func(x *tracing.Export) { x.Root, x.OwnRoot = tracing.RootOn, true })},
	{name: "a rate goes before", flags: "--trace-config=mode=opentelemetry --trace-config=rate=7", level: infer.TraceTimestamps,
		env: map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, want: with(nil)},
	{name: "no such sampler", flags: "--trace-config=mode=opentelemetry", level: infer.TraceTimestamps,
		env: map[string]string{"OTEL_TRACES_SAMPLER": "xray"}, want: with(nil), note: "OTEL_TRACES_SAMPLER is 'xray'"},
	{name: "no such argument", flags: "--trace-config=mode=opentelemetry", level: infer.TraceTimestamps,
		env:  map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
		want: with(func(x *tracing.Export) { x.Root, x.Ratio, x.OwnRoot = tracing.RootRatio, 1, true }), note: "OTEL_TRACES_SAMPLER_ARG"},
	{name: "propagators", flags: "--trace-config=mode=opentelemetry --trace-config=opentelemetry,baggage=k", level: infer.TraceTimestamps,
		env: map[string]string{"OTEL_PROPAGATORS": "b3"}, want: with(func(x *tracing.Export) { x.NoParent = true }), note: "OTEL_PROPAGATORS names 'b3'"},
}

func TestOpenTelemetry(t *testing.T) {
	for _, row := range otelRows {
		t.Run(row.name, func(t *testing.T) {
			args := append([]string{"--model-repository=m"}, strings.Fields(row.flags)...)
			s, err := ParseServe(args, func(name string) (string, bool) { v, ok := row.env[name]; return v, ok })
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Config.Trace; !reflect.DeepEqual(got.Export, row.want) || got.Level != row.level {
				t.Errorf("got level %d and %+v, want %d and %+v", got.Level, got.Export, row.level, row.want)
			}
			notes := strings.Join(s.Notices, "\n")
			if row.note == "" && strings.Contains(notes, "OTEL") || !strings.Contains(notes, row.note) {
				t.Errorf("notices %q, want %q", notes, row.note)
			}
		})
	}
}
