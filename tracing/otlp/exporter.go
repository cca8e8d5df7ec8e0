package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// The waits between the tries of one export; that all of them end within its timeout is
// the exporter's own affair. They are shorter than the client's own, so that little is
// lost once a collector is back.
const (
	retryFirst = 250 * time.Millisecond
	retryMost  = 2 * time.Second
)

// hopeless is what the last export may take when the one before it failed.
const hopeless = 500 * time.Millisecond

// Deps are an Exporter's collaborators.
type Deps struct {
	Log     *slog.Logger
	Version string // of this program
	// Dropped is told how many sampled calls were lost; nil: nobody counts.
	Dropped func(n int)
}

// Exporter sends the spans of sampled calls to a collector. Make it with New; Run sends.
type Exporter struct {
	cfg    tracing.Export
	deps   Deps
	client otlptrace.Client
	wakeAt int           // sampled calls that make an export
	kick   chan struct{} // one token: so many wait

	mu      sync.Mutex
	waiting []*infer.TraceFamily // mu
	over    bool                 // mu; Run has ended

	gateway *resourcepb.Resource
	scope   *commonpb.InstrumentationScope

	dropped  atomic.Uint64
	exported atomic.Uint64 // calls

	// Run's alone.
	encoder encoder
	calls   int // whose spans wait in the encoder
	failing bool
}

// New makes an Exporter and checks its settings; it neither connects nor starts
// anything. What cfg leaves open the clients read from the environment: endpoint,
// headers, certificates, compression, timeout.
// Source: OTEL_EXPORTER_OTLP_… of the OpenTelemetry specification.
func New(cfg tracing.Export, deps Deps) (*Exporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("OpenTelemetry: %w", err)
	}
	x := &Exporter{cfg: cfg, deps: deps, kick: make(chan struct{}, 1)}
	x.wakeAt = max(1, min(cfg.MaxBatch/spansOfCall, cfg.MaxQueue/2))
	if cfg.ScheduleDelay == 0 {
		x.wakeAt = 1 // nothing waits
	}
	x.encoder.baggage = cfg.Baggage
	x.encoder.workers = map[string][]byte{}
	x.scope = &commonpb.InstrumentationScope{Name: "triton-server", Version: deps.Version}
	x.gateway = resource(cfg.Resource, deps.Version)
	if cfg.Protocol == tracing.ProtocolGRPC {
		opts := []otlptracegrpc.Option{otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: retryFirst,
			MaxInterval: retryMost, MaxElapsedTime: cfg.ExportTimeout})}
		if cfg.URL != "" {
			opts = append(opts, otlptracegrpc.WithEndpointURL(cfg.Endpoint()))
		}
		x.client = otlptracegrpc.NewClient(opts...)
		return x, nil
	}
	opts := []otlptracehttp.Option{otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: retryFirst,
		MaxInterval: retryMost, MaxElapsedTime: cfg.ExportTimeout})}
	if cfg.URL != "" {
		opts = append(opts, otlptracehttp.WithEndpointURL(cfg.Endpoint()))
	}
	encoding := otlptracehttp.EncodingProtobuf
	if cfg.Protocol == tracing.ProtocolJSON {
		encoding = otlptracehttp.EncodingJSON
	}
	opts = append(opts, otlptracehttp.WithEncoding(encoding))
	x.client = otlptracehttp.NewClient(opts...)
	return x, nil
}

// spansOfCall are the spans that most calls have.
const spansOfCall = 9

// Take queues a call whose spans are complete; it is lost where the queue is full, or
// Run has ended. It wakes Run for a whole export only: to be woken for each call would cost more than the
// spans do.
func (x *Exporter) Take(f *infer.TraceFamily) {
	x.mu.Lock()
	n := len(x.waiting)
	room := n < x.cfg.MaxQueue && !x.over
	if room {
		x.waiting = append(x.waiting, f)
	}
	x.mu.Unlock()
	switch {
	case !room:
		x.drop(1)
	case n+1 == x.wakeAt:
		select {
		case x.kick <- struct{}{}:
		default:
		}
	}
}

// taken are the calls that wait; spare is for those that come.
func (x *Exporter) taken(spare []*infer.TraceFamily) []*infer.TraceFamily {
	clear(spare)
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.waiting
	x.waiting = spare[:0]
	return out
}

// Dropped counts the sampled calls whose spans were lost.
func (x *Exporter) Dropped() uint64 { return x.dropped.Load() }

// Exported counts the calls whose spans a collector has taken.
func (x *Exporter) Exported() uint64 { return x.exported.Load() }

func (x *Exporter) drop(n int) {
	x.dropped.Add(uint64(n))
	if x.deps.Dropped != nil {
		x.deps.Dropped(n)
	}
}

// Run sends until ctx ends; it then sends what has come until then, within
// cfg.FlushAtEnd. Trouble with the collector is logged and loses spans; it is no error of
// Run, which fails only where the client can't be used as it is configured.
func (x *Exporter) Run(ctx context.Context) error {
	last := context.WithoutCancel(ctx)
	if err := x.client.Start(last); err != nil {
		return fmt.Errorf("OpenTelemetry: %w", err)
	}
	delay := x.cfg.ScheduleDelay
	if delay == 0 { // each call wakes; a timer of 0 would never rest
		delay = time.Hour
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	var calls []*infer.TraceFamily
	for {
		select {
		case <-x.kick:
		case <-timer.C:
		case <-ctx.Done():
			return x.finish(last, calls)
		}
		calls = x.taken(calls)
		for _, f := range calls {
			if x.collect(f); x.encoder.spans >= x.cfg.MaxBatch {
				x.running(ctx)
			}
		}
		x.running(ctx)
		timer.Reset(delay)
	}
}

// running exports while ctx may end: what is on its way then has as long as the last
// export.
func (x *Exporter) running(ctx context.Context) {
	if x.calls == 0 {
		return
	}
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	left := x.atEnd()
	defer context.AfterFunc(ctx, func() {
		late, stop := context.WithTimeout(sending, left)
		defer stop()
		<-late.Done()
		cancel()
	})()
	x.export(sending, x.cfg.ExportTimeout)
}

// atEnd is what the last export may take.
func (x *Exporter) atEnd() time.Duration {
	if x.failing {
		return min(x.cfg.FlushAtEnd, hopeless)
	}
	return x.cfg.FlushAtEnd
}

func (x *Exporter) collect(f *infer.TraceFamily) {
	if x.calls == 0 {
		x.encoder.base = time.Now().UnixNano() - infer.Now()
	}
	x.encoder.family(f)
	x.calls++
}

// finish sends what there is.
func (x *Exporter) finish(ctx context.Context, calls []*infer.TraceFamily) error {
	end := time.Now().Add(x.atEnd())
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	for _, f := range x.taken(calls) {
		if x.collect(f); x.encoder.spans >= x.cfg.MaxBatch {
			x.export(ctx, time.Until(end))
		}
	}
	x.export(ctx, time.Until(end))
	if n := x.Dropped(); n > 0 {
		x.deps.Log.Warn("spans of sampled calls were lost", "calls", n)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := x.client.Stop(ctx); err != nil {
		x.deps.Log.Warn("closing the connection to the collector", "error", err)
	}
	return nil
}

// export sends what is encoded. Trouble is told once until it is over.
func (x *Exporter) export(ctx context.Context, timeout time.Duration) {
	if x.calls == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	calls := x.calls
	request, err := x.request()
	if err == nil {
		err = x.client.UploadTraces(ctx, request)
	}
	x.encoder.reset()
	x.calls = 0
	switch {
	case err != nil:
		x.drop(calls)
		if !x.failing {
			x.deps.Log.Error("spans can't be exported and are lost until the collector takes them again", "error", err)
		}
	case x.failing:
		x.deps.Log.Info("spans are exported again", "lost", x.Dropped())
	}
	if err == nil {
		x.exported.Add(uint64(calls))
	}
	x.failing = err != nil
}

// request is what the client sends: the encoded spans stand in the messages as fields
// that they don't know, which are written as they are.
func (x *Exporter) request() ([]*tracepb.ResourceSpans, error) {
	out := []*tracepb.ResourceSpans{x.spans(x.gateway, x.encoder.gateway)}
	for name, b := range x.encoder.workers {
		if len(b) > 0 {
			out = append(out, x.spans(workerResource(x.gateway, name), b))
		}
	}
	if x.cfg.Protocol != tracing.ProtocolJSON {
		return out, nil
	}
	for _, r := range out { // JSON is made of fields that are known
		b, err := proto.Marshal(r)
		if err == nil {
			err = proto.Unmarshal(b, r)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (x *Exporter) spans(r *resourcepb.Resource, encoded []byte) *tracepb.ResourceSpans {
	scope := &tracepb.ScopeSpans{Scope: x.scope}
	scope.ProtoReflect().SetUnknown(encoded)
	return &tracepb.ResourceSpans{Resource: r, ScopeSpans: []*tracepb.ScopeSpans{scope}}
}
