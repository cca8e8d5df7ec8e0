package stats

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

const (
	classicText = "text/plain;version=0.0.4"
	openMetrics = "application/openmetrics-text;version=1.0.0"
)

func ended(r *Registry, sampled bool) {
	m := r.Model("m", 1, nil, true)
	env := &infer.Envelope{Span: infer.SpanContext{Trace: infer.TraceID{0xab, 15: 7}, Sampled: sampled}}
	m.Done(&infer.Request{Envelope: env, Times: infer.Times{RequestStart: 1, QueueStart: 1, ComputeStart: 1000, ComputeEnd: 2_000_000, RequestEnd: 3_000_000}}, nil)
}

func TestExemplars(t *testing.T) {
	const want = `# {trace_id="ab000000000000000000000000000007"}`
	sampled, other := New(Config{}, Deps{}), New(Config{}, Deps{})
	ended(sampled, true)
	ended(other, false)
	open := scrape(t, sampled, openMetrics)
	for _, name := range []string{"sluice_request_duration_seconds_bucket", "sluice_queue_duration_seconds_bucket", "sluice_compute_duration_seconds_bucket"} {
		found := false
		for _, line := range strings.Split(open, "\n") {
			found = found || strings.HasPrefix(line, name) && strings.Contains(line, want)
		}
		if !found {
			t.Errorf("%s has no exemplar", name)
		}
	}
	if strings.Contains(scrape(t, sampled, classicText), "# {") {
		t.Error("the classic text has exemplars, which its readers don't know")
	}
	if strings.Contains(scrape(t, other, openMetrics), "# {") {
		t.Error("a request that is not sampled left an exemplar")
	}
}

// The names of the original's counters are the same in every format.
func TestOpenMetricsKeepsNames(t *testing.T) {
	r := New(Config{CounterLatencies: true}, Deps{})
	ended(r, false)
	open := scrape(t, r, openMetrics)
	for _, line := range strings.Split(scrape(t, r, classicText), "\n") {
		name := line[:max(strings.IndexAny(line, "{ "), 0)]
		if !strings.HasPrefix(line, "nv_") || strings.Contains(open, "\n"+name+"{") || strings.Contains(open, "\n"+name+" ") {
			continue
		}
		t.Errorf("not in the OpenMetrics text: %s", line)
	}
	if !strings.Contains(open, "# TYPE nv_inference_request_success unknown\n") || !strings.Contains(open, "sluice_refusals_total{") {
		t.Errorf("types or names are wrong:\n%.2000s", open)
	}
}

func TestCalls(t *testing.T) {
	r := New(Config{}, Deps{})
	c := r.Calls([]string{"ok", "denied"}, 2)
	env := &infer.Envelope{Protocol: "http"}
	batch := &infer.Request{Rows: 1, Times: infer.Times{ComputeStart: 1, ComputeEnd: 4_000_000_001, BatchRows: 4}}
	for i := range 5 {
		env.Principal = &infer.Principal{Name: "p" + strconv.Itoa(i)}
		c.Ended(env, &infer.End{Request: batch, Received: 10, Sent: 3}, "ok")
	}
	env.Principal = nil
	c.Ended(env, &infer.End{Err: infer.Errorf(infer.Unauthenticated, "who?")}, "denied")
	c.Ended(env, &infer.End{Err: infer.Refusef(infer.Unavailable, infer.ReasonStopping, "bye")}, "denied")
	c.Ended(env, &infer.End{Err: errors.New("a bug")}, "denied")
	text := scrape(t, r, classicText)
	for _, want := range []string{
		`sluice_call_refusals_total{protocol="http",reason="unauthenticated"} 1`,
		`sluice_call_refusals_total{protocol="http",reason="stopping"} 1`,
		`sluice_calls_total{outcome="ok",protocol="http"} 5`,
		`sluice_calls_total{outcome="denied",protocol="http"} 3`,
		`sluice_principal_requests_total{outcome="ok",principal="p1"} 1`,
		`sluice_principal_requests_total{outcome="ok",principal="other"} 3`,
		`sluice_principal_requests_total{outcome="denied",principal="other"} 3`,
		`sluice_principal_compute_seconds_total{principal="p0"} 1`,
		`sluice_principal_received_bytes_total{principal="other"} 30`,
		`sluice_principal_sent_bytes_total{principal="p0"} 3`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, `"p2"`) || strings.Contains(text, "a bug") {
		t.Errorf("more principals than asked for, or an error that is no refusal:\n%s", text)
	}
}

func TestReloads(t *testing.T) {
	r := New(Config{}, Deps{})
	r.Reload("policy").Done(nil)
	r.Reload("policy").Done(errors.New("line 3"))
	text := scrape(t, r, classicText)
	for _, want := range []string{`sluice_config_last_reload_successful{config="policy"} 0`,
		`sluice_config_reloads_total{config="policy",result="taken"} 1`, `sluice_config_reloads_total{config="policy",result="refused"} 1`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestSources(t *testing.T) {
	r := New(Config{Version: "1.2.3"}, Deps{})
	r.Add(func(gauge, counter func(string, string, float64, ...string)) {
		gauge("sluice_connections", "Open.", 3, "protocol", "http")
		counter("sluice_x_total", "X.", 4)
	})
	text := scrape(t, r, classicText)
	for _, want := range []string{`sluice_connections{protocol="http"} 3`, "sluice_x_total 4", `version="1.2.3"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// BenchmarkDone is what counting costs a request: its histograms, and with exemplars.
func BenchmarkDone(b *testing.B) {
	for name, sampled := range map[string]bool{"plain": false, "exemplar": true} {
		b.Run(name, func(b *testing.B) {
			r := New(Config{CounterLatencies: true}, Deps{})
			m := r.Model("m", 1, nil, true)
			env := &infer.Envelope{Span: infer.SpanContext{Trace: infer.TraceID{1}, Sampled: sampled}}
			req := &infer.Request{Envelope: env, Times: infer.Times{RequestStart: 1, QueueStart: 1, ComputeStart: 1000, ComputeInputEnd: 1100,
				ComputeOutputStart: 1900, ComputeEnd: 2_000_000, RequestEnd: 3_000_000}}
			b.ReportAllocs()
			for b.Loop() {
				m.Done(req, nil)
			}
		})
	}
}

// A principal may be called like the sum of all further ones: there is one series of each
// name, or the whole scrape would fail.
func TestAPrincipalCalledOther(t *testing.T) {
	for _, first := range []string{"other", "one"} {
		r := New(Config{}, Deps{})
		c := r.Calls([]string{"ok"}, 1)
		for _, name := range []string{first, "two", "other"} {
			c.Ended(&infer.Envelope{Protocol: "http", Principal: &infer.Principal{Name: name}}, &infer.End{}, "ok")
		}
		text := scrape(t, r, classicText)
		if n := strings.Count(text, `sluice_principal_requests_total{outcome="ok",principal="other"}`); n != 1 {
			t.Errorf("%s first: %d series: %.300s", first, n, text)
		}
	}
}
