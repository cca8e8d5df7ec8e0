package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// collector keeps what it gets, over HTTP or gRPC.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	fails  atomic.Bool
	header atomic.Value // string: x-key of the last request

	mu   sync.Mutex
	got  []*tracepb.ResourceSpans // mu
	reqs int                      // mu
}

func (c *collector) take(m *collectorpb.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reqs++
	c.got = append(c.got, m.ResourceSpans...)
}

func (c *collector) Export(ctx context.Context, m *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	if v := metadata.ValueFromIncomingContext(ctx, "x-key"); len(v) > 0 {
		c.header.Store(v[0])
	}
	c.take(m)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.fails.Load() {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	c.header.Store(r.Header.Get("X-Key"))
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	m := &collectorpb.ExportTraceServiceRequest{}
	if err == nil && r.Header.Get("Content-Type") == "application/json" {
		// identifiers are hexadecimal there, which the generated code does not know
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
	} else if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.take(m)
}

// names counts the spans that came, by service and name.
func (c *collector) names() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, r := range c.got {
		service := ""
		for _, a := range r.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, s := range r.ScopeSpans {
			for _, span := range s.Spans {
				out[service+"/"+span.Name]++
			}
		}
	}
	return out
}

func (c *collector) wait(t *testing.T, name string, n int) {
	t.Helper()
	end := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for c.names()[name] < n {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never came: %d of %s; there are %v", n, name, c.names())
		}
	}
}

// running is an Exporter that runs until stop.
type running struct {
	*Exporter
	log  *syncBuffer
	stop func()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, change func(*tracing.Export)) *running {
	t.Helper()
	cfg := tracing.DefaultExport()
	cfg.ScheduleDelay = 5 * time.Millisecond
	change(&cfg)
	r := &running{log: &syncBuffer{}}
	var err error
	if r.Exporter, err = New(cfg, Deps{Log: slog.New(slog.NewTextHandler(r.log, nil)), Version: "1.2"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// call is a sampled call that has ended.
func call(model string) *infer.TraceFamily {
	r := &rig{}
	f, _ := r.open("http", infer.ActionInference)
	tr := begin(f, model)
	executed((*infer.TraceBatch)(nil).Join(tr), 1)
	computed(tr)
	tr.End()
	f.Close()
	return f
}

func TestExport(t *testing.T) {
	for _, protocol := range []string{tracing.ProtocolHTTP, tracing.ProtocolJSON, tracing.ProtocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			c := &collector{}
			url := ""
			if protocol == tracing.ProtocolGRPC {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := grpc.NewServer()
				collectorpb.RegisterTraceServiceServer(s, c)
				go s.Serve(l)
				t.Cleanup(s.Stop)
				url = "http://" + l.Addr().String()
			} else {
				s := httptest.NewServer(c)
				t.Cleanup(s.Close)
				url = s.URL + "/v1/traces"
			}
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
			r := start(t, func(x *tracing.Export) { x.URL, x.Protocol, x.Resource = url, protocol, []string{"service.name=front"} })
			r.Take(call("m"))
			c.wait(t, "front/InferRequest", 1)
			r.Take(call("m"))
			r.stop()
			got := c.names()
			for _, name := range []string{"front/InferRequest", "front/admission", "front/m", "front/queue", "front/compute", "front/batch",
				"sluice-worker/input", "sluice-worker/infer", "sluice-worker/output"} {
				if got[name] != 2 {
					t.Errorf("%d of %s, want 2; there are %v", got[name], name, got)
				}
			}
			if c.header.Load() != "secret" || strings.Contains(r.log.String(), "secret") {
				t.Errorf("header %v, log %s", c.header.Load(), r.log)
			}
			if r.Exported() != 2 || r.Dropped() != 0 {
				t.Errorf("%d exported, %d dropped", r.Exported(), r.Dropped())
			}
		})
	}
}

// A collector that refuses loses what it is sent, which is counted and told once; when it
// is back, all goes on.
func TestCollectorGoneAndBack(t *testing.T) {
	c := &collector{}
	c.fails.Store(true)
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	r := start(t, func(x *tracing.Export) { x.URL, x.ExportTimeout = s.URL+"/v1/traces", 20*time.Millisecond })
	end := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.Dropped() < 3 { // several exports
		r.Take(call("lost"))
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%d dropped", r.Dropped())
		}
	}
	c.fails.Store(false)
	for c.names()[tracing.DefaultService+"/found"] == 0 {
		r.Take(call("found"))
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("nothing came again: %v", c.names())
		}
	}
	r.stop()
	log := r.log.String()
	if strings.Count(log, "can't be exported") != 1 || strings.Count(log, "exported again") != 1 {
		t.Errorf("log: %s", log)
	}
}

// Without a delay a call leaves at once, and an exporter that has nothing to do rests.
func TestNoDelay(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	r := start(t, func(x *tracing.Export) { x.URL, x.ScheduleDelay = s.URL+"/v1/traces", 0 })
	for n := range 3 {
		r.Take(call("m"))
		c.wait(t, tracing.DefaultService+"/InferRequest", n+1)
	}
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		t.Fatal(err)
	}
	<-time.After(200 * time.Millisecond)
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		t.Fatal(err)
	}
	if spent := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()); spent > 50*time.Millisecond {
		t.Errorf("an idle exporter computed %v in 200 ms", spent)
	}
}

// What comes after the end is lost, and counted.
func TestTakeAfterTheEnd(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	r := start(t, func(x *tracing.Export) { x.URL = s.URL + "/v1/traces" })
	r.stop()
	r.Take(call("m"))
	if r.Dropped() != 1 {
		t.Errorf("%d dropped, want 1", r.Dropped())
	}
}

// The original's client takes a URL without a scheme for http.
func TestURLs(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	r := start(t, func(x *tracing.Export) { x.URL = strings.TrimPrefix(s.URL, "http://") + "/v1/traces" })
	r.Take(call("m"))
	c.wait(t, tracing.DefaultService+"/InferRequest", 1)
	for _, url := range []string{"ftp://host/v1", "http:///v1/traces", "http://%zz", "://x"} {
		cfg := tracing.DefaultExport()
		cfg.URL = url
		if _, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s was taken", url)
		}
	}
}

// A full queue loses calls and blocks nobody.
func TestFullQueue(t *testing.T) {
	cfg := tracing.DefaultExport()
	cfg.MaxQueue = 2
	lost := 0
	x, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler), Dropped: func(n int) { lost += n }})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // nobody reads
		x.Take(call("m"))
	}
	if lost != 3 || x.Dropped() != 3 {
		t.Errorf("%d told, %d counted, want 3", lost, x.Dropped())
	}
}

// Many spans leave in several exports, and a full one does not wait for the delay.
func TestBatches(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	r := start(t, func(x *tracing.Export) { x.URL, x.MaxBatch, x.ScheduleDelay = s.URL+"/v1/traces", 18, time.Hour })
	for range 30 {
		r.Take(call("m"))
	}
	c.wait(t, tracing.DefaultService+"/InferRequest", 30)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reqs < 15 { // two calls of nine spans fill a batch
		t.Errorf("%d exports, want at least 15", c.reqs)
	}
}

// The end of the gateway does not wait long for a collector that hangs.
func TestFlushHasADeadline(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(hang) })
	r := start(t, func(x *tracing.Export) {
		x.URL, x.ScheduleDelay, x.FlushAtEnd = s.URL+"/v1/traces", time.Hour, 50*time.Millisecond
	})
	r.Take(call("m"))
	begin := time.Now()
	r.stop()
	if took := time.Since(begin); took > 5*time.Second || r.Dropped() != 1 {
		t.Errorf("took %v, %d dropped", took, r.Dropped())
	}
}

func TestResource(t *testing.T) {
	r := resource([]string{"a=b=c", "service.name=x", "service.name=y"}, "1.2")
	got := map[string]string{}
	for _, a := range workerResource(r, "cpu").Attributes {
		got[a.Key] = a.Value.GetStringValue()
	}
	if got["a"] != "b=c" || got["service.name"] != WorkerService || got["service.instance.id"] != "cpu" || got["service.version"] != "1.2" {
		t.Errorf("got %v", got)
	}
	for _, a := range r.Attributes {
		if a.Key == "service.name" && a.Value.GetStringValue() != "y" {
			t.Errorf("service.name %v", a.Value)
		}
	}
	for text, want := range map[string]bool{"a=b,c=d%2Ce,": true, "": true, "a": false, "=b": false, "a=%zz": false} {
		if _, ok := Unescape(text); ok != want {
			t.Errorf("%q: %v, want %v", text, ok, want)
		}
	}
}
