package stats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/worker"
)

var _ schedule.Observer = (*Model)(nil)

func TestMain(m *testing.M) { leak.Main(m) }

const ms = int64(time.Millisecond)

// request has taken 10 ms, of which 2 in the queue, 1 input, 4 infer, 2 output.
func request() *infer.Request {
	return &infer.Request{ID: "r", Times: infer.Times{RequestStart: 1, QueueStart: 1 + ms/2, ComputeStart: 1 + 5*ms/2,
		ComputeInputEnd: 1 + 7*ms/2, ComputeOutputStart: 1 + 15*ms/2, ComputeEnd: 1 + 19*ms/2, RequestEnd: 1 + 10*ms}}
}

func scrape(t *testing.T, r *Registry, accept string) string {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, "{")
			t.Errorf("no line %q; there is\n%s", line, grep(text, name))
		}
	}
}

func grep(text, what string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, what) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func busyModel(r *Registry) *Model {
	m := r.Model("mlp", 2, map[string]string{"team": "vision"}, true)
	for range 3 {
		m.Done(request(), nil)
	}
	m.Executed(2, 5, infer.ComputeTimes{Input: ms, Infer: 4 * ms, Output: 2 * ms})
	m.Executed(1, 1, infer.ComputeTimes{Input: ms, Infer: 4 * ms, Output: 2 * ms})
	m.Queued(3)
	m.Queued(-1)
	refused := &infer.Request{Times: infer.Times{RequestStart: 1, QueueStart: 2, RequestEnd: 1 + ms}}
	m.Done(refused, infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "Exceeds maximum queue size"))
	m.Done(refused, fmt.Errorf("wrapped: %w", context.Canceled))
	m.Done(refused, infer.Errorf(infer.InvalidArg, "no such input"))
	m.Done(request(), infer.Errorf(infer.Internal, "model failed"))
	m.Done(refused, infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "lost"))
	m.Done(&infer.Request{Times: infer.Times{RequestStart: 1, RequestEnd: 2}}, infer.Errorf(infer.InvalidArg, "unexpected shape"))
	m.SetLoadDuration(1500 * time.Millisecond)
	return m
}

func TestMetrics(t *testing.T) {
	r := New(Config{CounterLatencies: true, CPU: true, GPU: true}, Deps{})
	m := busyModel(r)
	text := scrape(t, r, "")
	const l = `{model="mlp",team="vision",version="2"}`
	const lr = `{model="mlp",reason="%s",team="vision",version="2"} %d`
	wantLines(t, text,
		"nv_inference_request_success"+l+" 3",
		"nv_inference_request_failure"+fmt.Sprintf(lr, "REJECTED", 1),
		"nv_inference_request_failure"+fmt.Sprintf(lr, "CANCELED", 1),
		"nv_inference_request_failure"+fmt.Sprintf(lr, "OTHER", 1),
		"nv_inference_request_failure"+fmt.Sprintf(lr, "BACKEND", 2),
		"nv_inference_count"+l+" 6",
		"nv_inference_exec_count"+l+" 2",
		"nv_inference_pending_request_count"+l+" 2",
		"nv_inference_request_duration_us"+l+" 30000",
		"nv_inference_queue_duration_us"+l+" 6000",
		"nv_inference_compute_input_duration_us"+l+" 3000",
		"nv_inference_compute_infer_duration_us"+l+" 12000",
		"nv_inference_compute_output_duration_us"+l+" 6000",
		"nv_model_load_duration_secs"+l+" 1.5",
		"sluice_refusals_total"+fmt.Sprintf(lr, "queue_full", 1),
		"sluice_refusals_total"+fmt.Sprintf(lr, "cancelled", 1),
		"sluice_refusals_total"+fmt.Sprintf(lr, "worker_lost", 1),
		"sluice_refusals_total"+fmt.Sprintf(lr, "invalid", 1),
		`sluice_request_duration_seconds_count{model="mlp",team="vision",version="2"} 3`,
		`sluice_request_duration_seconds_bucket{model="mlp",team="vision",version="2",le="0.01"} 3`,
		`sluice_batch_size_bucket{model="mlp",team="vision",version="2",le="4"} 1`,
		`sluice_batch_size_sum{model="mlp",team="vision",version="2"} 6`,
		"# TYPE nv_inference_request_success counter",
		"# TYPE sluice_queue_duration_seconds histogram",
		"# TYPE nv_cpu_utilization gauge", "# TYPE nv_cpu_memory_total_bytes gauge", "# TYPE nv_cpu_memory_used_bytes gauge")
	if s := grep(text, "summary_us") + grep(text, "nv_gpu"); s != "" {
		t.Errorf("summaries are off and there is no GPU, yet: %s", s)
	}
	if open := scrape(t, r, "application/openmetrics-text;version=1.0.0"); !strings.HasSuffix(open, "# EOF\n") ||
		!strings.Contains(open, "\nnv_inference_request_success"+l+" 3.0\n") {
		t.Errorf("OpenMetrics: got\n%s", grep(open, "request_success"))
	}
	proto := scrape(t, r, "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text")
	if !strings.Contains(proto, "positive_span") {
		t.Error("no native buckets in the protobuf format")
	}
	m.Close()
	if s := grep(scrape(t, r, ""), `model="mlp"`); s != "" {
		t.Errorf("after Close there is\n%s", s)
	}
}

func TestSwitches(t *testing.T) {
	r := New(Config{SummaryLatencies: true, Quantiles: map[float64]float64{0.5: 0.05}}, Deps{})
	busyModel(r)
	text := scrape(t, r, "")
	wantLines(t, text, `nv_inference_request_summary_us{model="mlp",team="vision",version="2",quantile="0.5"} 10000`,
		`nv_inference_queue_summary_us_count{model="mlp",team="vision",version="2"} 3`)
	if s := grep(text, "duration_us") + grep(text, "nv_cpu"); s != "" {
		t.Errorf("switched off, yet: %s", s)
	}
}

func TestReloadSharesTheRecord(t *testing.T) {
	r := New(Config{}, Deps{})
	old := r.Model("m", 1, nil, false)
	old.Done(request(), nil)
	fresh := r.Model("m", 1, nil, false)
	r.Remove(old)
	fresh.Done(request(), nil)
	text := scrape(t, r, "")
	wantLines(t, text, `nv_inference_request_success{model="m",version="1"} 2`)
	if s := grep(text, "sluice_batch_size"); s != "" {
		t.Errorf("the model has no batch dimension, yet: %s", s)
	}
	r.Remove(fresh)
	if again := r.Model("m", 1, nil, false); again == fresh {
		t.Error("a removed record came back")
	}
}

func TestStatistics(t *testing.T) {
	m := busyModel(New(Config{}, Deps{}))
	hit := request()
	hit.Times = infer.Times{RequestStart: 1, RequestEnd: 1 + ms, CacheLookup: ms / 2, CacheHit: true}
	m.Done(hit, nil)
	m.SetMemory([]*inference.MemoryUsage{{Type: "CPU", ByteSize: 7}})
	got := m.Snapshot()
	if now := uint64(time.Now().UnixMilli()); got.LastInference == 0 || got.LastInference > now {
		t.Errorf("last inference: got %d at %d", got.LastInference, now)
	}
	got.LastInference = 0
	want := &inference.ModelStatistics{}
	if err := protojson.Unmarshal([]byte(`{"name":"mlp","version":"2","inference_count":6,"execution_count":2,
		"inference_stats":{"success":{"count":4,"ns":31000000},"fail":{"count":5,"ns":14000000},"queue":{"count":4,"ns":6000000},
		"compute_input":{"count":3,"ns":3000000},"compute_infer":{"count":3,"ns":12000000},"compute_output":{"count":3,"ns":6000000},
		"cache_hit":{"count":1,"ns":500000},"cache_miss":{}},
		"batch_stats":[{"batch_size":1,"compute_input":{"count":1,"ns":1000000},"compute_infer":{"count":1,"ns":4000000},
		"compute_output":{"count":1,"ns":2000000}},{"batch_size":5,"compute_input":{"count":1,"ns":1000000},
		"compute_infer":{"count":1,"ns":4000000},"compute_output":{"count":1,"ns":2000000}}],
		"memory_usage":[{"type":"CPU","byte_size":7}]}`), want); err != nil {
		t.Fatal(err)
	}
	if a, b := got.String(), want.String(); strings.Join(strings.Fields(a), " ") != strings.Join(strings.Fields(b), " ") {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

func TestExactUnderConcurrency(t *testing.T) {
	const goroutines, each = 8, 2000
	r := New(Config{CounterLatencies: true}, Deps{})
	m := r.Model("m", 1, nil, true)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				m.Queued(1)
				m.Executed(1, i%4, infer.ComputeTimes{Infer: 1})
				m.Queued(-1)
				m.Done(request(), nil)
			}
		})
	}
	wg.Wait()
	const l, n = `{model="m",version="1"} `, goroutines * each
	wantLines(t, scrape(t, r, ""), "nv_inference_request_success"+l+fmt.Sprint(n), "nv_inference_exec_count"+l+fmt.Sprint(n),
		"nv_inference_count"+l+fmt.Sprint(n*6/4), "nv_inference_pending_request_count"+l+"0")
}

func TestWorkersAndFronts(t *testing.T) {
	r := New(Config{GPU: true}, Deps{})
	w := r.Worker("gpu0")
	w.SetUp(true)
	w.Restarted()
	w.Report(&worker.WatchResponse{ResidentBytes: 4096, Devices: []*worker.DeviceState{{Device: &worker.Device{Kind: worker.Device_CPU}},
		{Device: &worker.Device{Kind: worker.Device_GPU, Uuid: "GPU-1"}, Utilization: 0.25, PowerWatts: 70, EnergyJoules: 9}}})
	f := r.Front("http", map[int]string{200: "200", 503: "503"})
	f.Answered(200)
	f.Answered(599)
	f.Answered(-1)
	wantLines(t, scrape(t, r, ""), `sluice_worker_up{worker="gpu0"} 1`, `sluice_worker_restarts_total{worker="gpu0"} 1`,
		`sluice_worker_resident_bytes{worker="gpu0"} 4096`, `nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25`,
		`nv_energy_consumption{gpu_uuid="GPU-1"} 9`, `sluice_requests_total{code="200",protocol="http"} 1`,
		`sluice_requests_total{code="other",protocol="http"} 2`)
	w.SetUp(false)
	text := scrape(t, r, "")
	if strings.Contains(text, `code="503"`) {
		t.Error("a code that was never answered has a series")
	}
	wantLines(t, text, `sluice_worker_up{worker="gpu0"} 0`)
	if s := grep(text, "nv_gpu"); s != "" {
		t.Errorf("the worker is down, yet: %s", s)
	}
	r.RemoveWorker(w)
	if s := grep(scrape(t, r, ""), "sluice_worker"); s != "" {
		t.Errorf("the worker is gone, yet: %s", s)
	}
}

func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(Config{}, Deps{}).Serve(ctx, l, nil) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		method, path string
		want         int
	}{{"GET", "/metrics", 200}, {"GET", "/", 404}, {"GET", "/metrics/x", 404}, {"POST", "/metrics", 405}} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+l.Addr().String()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Error(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, res.StatusCode, c.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCPUReader(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", "cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 1 1 1\n")
	write("meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\n")
	c := newCPUReader(dir)
	write("stat", "cpu  150 0 150 900 0 0 0 0 99 0\n")
	if u, ok := c.utilization(); !ok || u != 0.5 {
		t.Errorf("utilization: got %v %v, want 0.5", u, ok)
	}
	if total, available, ok := c.memory(); !ok || total != 1000<<10 || available != 600<<10 {
		t.Errorf("memory: got %d %d %v", total, available, ok)
	}
	write("stat", "nonsense\n")
	if _, ok := c.utilization(); ok {
		t.Error("nonsense was understood")
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name string
		cfg  Config
	}{{"default", Config{CounterLatencies: true}}, {"summaries", Config{CounterLatencies: true, SummaryLatencies: true}}} {
		b.Run(c.name, func(b *testing.B) {
			m := New(c.cfg, Deps{}).Model("m", 1, nil, true)
			req := request()
			b.ReportAllocs()
			for b.Loop() {
				m.Done(req, nil)
			}
		})
	}
	b.Run("execution", func(b *testing.B) {
		m := New(Config{}, Deps{}).Model("m", 1, nil, true)
		b.ReportAllocs()
		for b.Loop() {
			m.Queued(1)
			m.Executed(1, 8, infer.ComputeTimes{Infer: 1})
			m.Queued(-1)
		}
	})
	b.Run("failure", func(b *testing.B) {
		m := New(Config{}, Deps{}).Model("m", 1, nil, true)
		req, err := request(), errors.New("x")
		b.ReportAllocs()
		for b.Loop() {
			m.Done(req, err)
		}
	})
}
