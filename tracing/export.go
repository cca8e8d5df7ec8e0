package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ModeOpenTelemetry is the mode in which requests become spans.
const ModeOpenTelemetry = "opentelemetry"

// The protocols of OTLP. Source: OTEL_EXPORTER_OTLP_PROTOCOL of the OpenTelemetry
// specification.
const (
	ProtocolHTTP = "http/protobuf"
	ProtocolJSON = "http/json"
	ProtocolGRPC = "grpc"
)

// Root says how a call is sampled that came without a trace, or whose caller's decision
// does not count.
type Root uint8

// The ways: every trace_rate'th, always, never, by a ratio of the trace IDs.
const (
	RootRate Root = iota
	RootOn
	RootOff
	RootRatio
)

// Export is what mode opentelemetry is told. Nothing of it changes while the server runs.
// Source of the defaults: the original's flags, and the OpenTelemetry specification.
type Export struct {
	URL      string // of traces over OTLP; "": what the environment says, or the default
	Protocol string
	// Resource are the attributes of this process, as key=value, the later ones first in
	// rank; service.name is DefaultService where none is given.
	Resource []string

	MaxQueue      int           // sampled calls that wait to be exported
	MaxBatch      int           // spans in one export
	ScheduleDelay time.Duration // longest wait of a span for its batch
	ExportTimeout time.Duration // of one export, with its retries

	Root       Root
	Ratio      float64 // of RootRatio; from 0 to 1
	OwnRoot    bool    // the caller's decision does not count
	NoParent   bool    // traceparent is not read
	Baggage    []string
	FlushAtEnd time.Duration // what the last export may take
}

// DefaultService is the service.name of the original.
const DefaultService = "triton-inference-server"

// DefaultURL is where the original's spans go, and where ours go over HTTP.
const DefaultURL = "http://localhost:4318/v1/traces"

// DefaultExport is mode opentelemetry without further settings.
func DefaultExport() Export {
	return Export{Protocol: ProtocolHTTP, MaxQueue: 2048, MaxBatch: 512, ScheduleDelay: 5 * time.Second,
		ExportTimeout: 30 * time.Second, FlushAtEnd: 5 * time.Second}
}

// Validate says everything that is wrong with x at once, or nil.
func (x *Export) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if x.Protocol != ProtocolHTTP && x.Protocol != ProtocolGRPC && x.Protocol != ProtocolJSON {
		bad("OTLP protocol is %q, not %s, %s or %s", x.Protocol, ProtocolGRPC, ProtocolHTTP, ProtocolJSON)
	}
	if u, err := url.Parse(x.Endpoint()); x.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("the collector's URL is %q, not http://HOST:PORT/PATH or https://…", x.shownURL())
	}
	if x.MaxQueue < 1 || x.MaxBatch < 1 {
		bad("the queue holds %d sampled calls and an export %d spans; both must be at least 1", x.MaxQueue, x.MaxBatch)
	}
	if x.ScheduleDelay < 0 || x.ExportTimeout <= 0 {
		bad("the schedule delay is %v and the export timeout %v; they must be at least 0 and greater than 0", x.ScheduleDelay, x.ExportTimeout)
	}
	if !(x.Ratio >= 0 && x.Ratio <= 1) {
		bad("the sampling ratio is %v, not within 0 and 1", x.Ratio)
	}
	return errors.Join(errs...)
}

// Endpoint is URL with its scheme: http where it has none, as in the original.
// Source: UrlParser of OpenTelemetry's C++ client.
func (x *Export) Endpoint() string {
	if x.URL == "" || strings.Contains(x.URL, "://") {
		return x.URL
	}
	return "http://" + x.URL
}

// shownURL is URL without the secret that may stand before its host.
func (x *Export) shownURL() string {
	at := strings.LastIndexByte(x.URL, '@')
	if at < 0 {
		return x.URL
	}
	scheme, _, ok := strings.Cut(x.URL, "://")
	if ok && len(scheme) < at {
		return scheme + "://" + x.URL[at+1:]
	}
	return x.URL[at+1:]
}

// values adds the settings of the mode to those that the protocol shows.
func (x *Export) values(v map[string][]string) {
	delete(v, nameFile)
	delete(v, nameFrequency)
	v[nameMode] = []string{ModeOpenTelemetry}
	if x.URL != "" {
		v["url"] = []string{x.shownURL()}
	}
	if len(x.Resource) > 0 {
		v["resource"] = x.Resource
	}
	v["bsp_max_queue_size"] = []string{strconv.Itoa(x.MaxQueue)}
	v["bsp_max_export_batch_size"] = []string{strconv.Itoa(x.MaxBatch)}
	v["bsp_schedule_delay"] = []string{strconv.FormatInt(x.ScheduleDelay.Milliseconds(), 10)}
}
