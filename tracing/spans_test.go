package tracing

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// kept are the families that an exporter would get.
type kept struct{ families []*infer.TraceFamily }

func (k *kept) Take(f *infer.TraceFamily) { k.families = append(k.families, f) }

// spanTracer is a Tracer in mode opentelemetry.
func spanTracer(change func(*Settings)) (*Tracer, *kept) {
	x := DefaultExport()
	s := Settings{Level: infer.TraceTimestamps, Rate: 1, Count: -1, Export: &x}
	if change != nil {
		change(&s)
	}
	k := &kept{}
	return New(s, Deps{Log: slog.New(slog.DiscardHandler), Spans: k}), k
}

func envelope(action infer.Action, model string, headers ...string) *infer.Envelope {
	return &infer.Envelope{Protocol: "http", Action: action, Model: model, Opened: 1, Header: func(key string) string {
		for i := 0; i < len(headers); i += 2 {
			if headers[i] == key {
				return headers[i+1]
			}
		}
		return ""
	}}
}

const (
	fromSampled = "00-" + traceText + "-" + spanText + "-01"
	fromQuiet   = "00-" + traceText + "-" + spanText + "-00"
)

var decisions = []struct {
	name   string
	change func(*Settings)
	action infer.Action
	header string
	want   bool
}{
	{"a root", nil, infer.ActionInference, "", true},
	{"rate 0", func(s *Settings) { s.Rate = 0 }, infer.ActionInference, "", false},
	{"rate 0, the caller sampled", func(s *Settings) { s.Rate = 0 }, infer.ActionInference, fromSampled, true},
	{"the caller did not sample", nil, infer.ActionInference, fromQuiet, false},
	{"level OFF", func(s *Settings) { s.Level = 0 }, infer.ActionInference, fromSampled, false},
	{"count 0", func(s *Settings) { s.Count = 0 }, infer.ActionInference, "", false},
	{"count 0, the caller sampled", func(s *Settings) { s.Count = 0 }, infer.ActionInference, fromSampled, true},
	{"always off, the caller sampled", func(s *Settings) { s.Export.Root = RootOff }, infer.ActionInference, fromSampled, true},
	{"always off alone", func(s *Settings) { s.Export.Root, s.Export.OwnRoot = RootOff, true }, infer.ActionInference, fromSampled, false},
	{"always on alone", func(s *Settings) { s.Export.Root, s.Export.OwnRoot, s.Rate = RootOn, true, 0 }, infer.ActionInference, fromQuiet, true},
	{"ratio 0", func(s *Settings) { s.Export.Root = RootRatio }, infer.ActionInference, "", false},
	{"ratio 1", func(s *Settings) { s.Export.Root, s.Export.Ratio = RootRatio, 1 }, infer.ActionInference, "", true},
	{"no propagation", func(s *Settings) { s.Export.NoParent = true }, infer.ActionInference, fromQuiet, true},
	{"a load", func(s *Settings) { s.Rate = 1000 }, infer.ActionModelRepository, "", true},
	{"a load, always off", func(s *Settings) { s.Export.Root = RootOff }, infer.ActionModelRepository, "", false},
	{"health", nil, infer.ActionHealth, "", false},
	{"health, the caller sampled", nil, infer.ActionHealth, fromSampled, true},
}

func TestDecisions(t *testing.T) {
	for _, row := range decisions {
		t.Run(row.name, func(t *testing.T) {
			tr, k := spanTracer(row.change)
			env := envelope(row.action, "m", headerParent, row.header, headerState, "a=b")
			if tr.On() {
				tr.Open(env)
			}
			if got := env.Trace != nil; got != row.want || env.Span.Sampled != row.want {
				t.Fatalf("sampled: %v, %v; want %v", got, env.Span.Sampled, row.want)
			}
			if tr.On() && row.header != "" && !tr.flags.Export.NoParent && env.Span.Trace.String() != traceText {
				t.Errorf("the trace is %s", env.Span.Trace)
			}
			if !row.want {
				return
			}
			tr.Admitted(env, nil)
			tr.Close(env, &infer.End{Status: 200})
			if len(k.families) != 1 {
				t.Fatalf("%d families", len(k.families))
			}
			c := k.families[0].Call
			if c.Span != env.Span || c.Ended == 0 || c.Admitted == 0 || c.Envelope.Header != nil || c.End.Status != 200 {
				t.Errorf("got %+v", c)
			}
			if env.Span.Span.String() == spanText || row.header != "" && !tr.flags.Export.NoParent && (c.Parent.String() != spanText || c.State != "a=b") {
				t.Errorf("span %s, parent %s, state %q", env.Span.Span, c.Parent, c.State)
			}
		})
	}
}

// A rate counts inferences alone, each once, and what callers sampled does not count.
func TestSpanRate(t *testing.T) {
	tr, _ := spanTracer(func(s *Settings) { s.Rate = 3 })
	sampled := 0
	for range 30 {
		for _, env := range []*infer.Envelope{envelope(infer.ActionInference, "m"), envelope(infer.ActionHealth, "")} {
			tr.Open(env)
			if env.Trace != nil {
				sampled++
			}
		}
		tr.Open(envelope(infer.ActionInference, "m", headerParent, fromSampled))
	}
	if sampled != 10 {
		t.Errorf("%d of 30 sampled at rate 3", sampled)
	}
}

func TestRatio(t *testing.T) {
	tr, _ := spanTracer(func(s *Settings) { s.Export.Root, s.Export.Ratio = RootRatio, 0.25 })
	n := 0
	for range 4000 {
		env := envelope(infer.ActionInference, "m")
		tr.Open(env)
		if env.Trace != nil {
			n++
			if !within(env.Span.Trace, 0.25) {
				t.Fatalf("trace %s is outside of the ratio", env.Span.Trace)
			}
		}
	}
	if n < 800 || n > 1200 {
		t.Errorf("%d of 4000 sampled at a ratio of 0.25", n)
	}
}

// Where the body alone names the model, its own settings decide once it is known.
func TestSettingsOfAModelNamedByItsBody(t *testing.T) {
	tr, k := spanTracer(func(s *Settings) { s.Rate = 0 })
	c, err := ParseChange(map[string][]string{nameRate: {"2"}})
	if err == nil {
		err = tr.Update("mine", c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		for _, model := range []string{"mine", "other"} {
			env := envelope(infer.ActionInference, "")
			env.Protocol = "grpc"
			tr.Open(env)
			req := &infer.Request{Model: model, ID: "r", Envelope: env}
			trace := tr.Begin(req)
			if want := model == "mine" && i%2 == 1; (trace != nil) != want || req.SpanContext().Sampled != want {
				t.Errorf("request %d of %s: sampled %v, want %v", i, model, trace != nil, want)
			}
			if trace != nil {
				trace.End()
			}
			if env.Trace != nil {
				tr.Close(env, &infer.End{Request: req})
			}
		}
	}
	if len(k.families) != 2 || k.families[0].Call.Envelope.Model != "mine" {
		t.Errorf("%d families", len(k.families))
	}
}

// A family is handed over once, when its call, its requests and their batches have ended,
// in whatever order.
func TestFamilyIsCompleteOnce(t *testing.T) {
	for order := range 6 {
		tr, k := spanTracer(nil)
		env := envelope(infer.ActionInference, "m")
		tr.Open(env)
		trace := tr.Begin(&infer.Request{Model: "m", Envelope: env})
		batch := (*infer.TraceBatch)(nil).Join(trace)
		parts := []func(){func() { tr.Close(env, &infer.End{}) }, trace.End, batch.Done}
		i, j := order%3, (order%3+1+order/3)%3
		for n, part := range []int{i, j, 3 - i - j} {
			if len(k.families) != 0 {
				t.Errorf("order %d: complete after %d parts", order, n)
			}
			parts[part]()
		}
		if len(k.families) != 1 {
			t.Errorf("order %d: %d families", order, len(k.families))
		}
	}
}

// counted is the header of a call whose memory becomes another's.
type counted struct{}

func (counted) Count(string) int { return 1 }

// What is kept of a call for its spans has nothing of the call's own memory.
func TestNothingOfTheCallIsKept(t *testing.T) {
	env := &infer.Envelope{Header: func(string) string { return "" }, Fields: counted{}, Trace: &infer.TraceFamily{Sink: func(*infer.TraceFamily) {}}}
	f := env.Trace
	f.Open(&infer.TraceCall{})
	(&Tracer{}).Close(env, &infer.End{Request: &infer.Request{}})
	if e := &f.Call.Envelope; e.Header != nil || e.Fields != nil || e.Trace != nil || f.Call.End.Request != nil {
		t.Errorf("kept: %+v", f.Call)
	}
}

func TestCarriedHeadersAreBounded(t *testing.T) {
	tr, _ := spanTracer(func(s *Settings) { s.Export.Baggage = []string{"k"} })
	env := envelope(infer.ActionInference, "m", headerParent, fromSampled, headerState, strings.Repeat("s", maxState+1), headerBaggage, strings.Repeat("b", maxBaggage))
	tr.Open(env)
	if c := env.Trace.Call; c.State != "" || len(c.Baggage) != maxBaggage {
		t.Errorf("state of %d bytes, baggage of %d", len(c.State), len(c.Baggage))
	}
}

// A call that is not sampled allocates nothing.
func TestNotSampledAllocatesNothing(t *testing.T) {
	tr, _ := spanTracer(func(s *Settings) { s.Rate = 1 << 30 })
	for name, header := range map[string]string{"root": "", "caller": fromQuiet} {
		env := envelope(infer.ActionInference, "m", headerParent, header)
		req := &infer.Request{Model: "m", Envelope: env}
		if n := testing.AllocsPerRun(100, func() {
			env.Span, env.Trace = infer.SpanContext{}, nil
			tr.Open(env)
			if tr.Begin(req) != nil {
				t.Error("sampled")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestShownSettings(t *testing.T) {
	tr, _ := spanTracer(func(s *Settings) { s.Export.URL, s.Export.Resource = "http://c/v1/traces", []string{"a=b", "c=d"} })
	s := tr.Settings("")
	v := s.Values()
	want := "trace_level trace_rate trace_count trace_mode bsp_max_export_batch_size bsp_max_queue_size bsp_schedule_delay resource url"
	if got := strings.Join(ShownNames(v[nameMode][0], v), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if v["bsp_schedule_delay"][0] != "5000" || len(v["resource"]) != 2 || v[nameMode][0] != ModeOpenTelemetry {
		t.Errorf("got %v", v)
	}
	for url, want := range map[string]string{"http://u:secret@c:1/x": "http://c:1/x", "u:secret@c:1": "c:1", "http://c:1/x": "http://c:1/x"} {
		s.Export.URL = url
		if got := s.Values()["url"][0]; got != want {
			t.Errorf("%s is shown as %s", url, got)
		}
	}
	if v[nameFile] != nil || v[nameFrequency] != nil {
		t.Errorf("settings of the other mode: %v", v)
	}
}

func BenchmarkOpenNotSampled(b *testing.B) {
	tr, _ := spanTracer(func(s *Settings) { s.Rate = 1 << 30 })
	env := envelope(infer.ActionInference, "m", headerParent, fromQuiet)
	b.ReportAllocs()
	for b.Loop() {
		tr.Open(env)
	}
}
