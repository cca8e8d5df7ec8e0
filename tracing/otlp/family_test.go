package otlp

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
)

var update = flag.Bool("update", false, "rewrite testdata")

// rig makes families as the pipeline and a scheduler do, with times of its own.
type rig struct {
	t    *testing.T
	ids  atomic.Uint64
	done []*infer.TraceFamily
}

func (r *rig) open(protocol string, action infer.Action) (*infer.TraceFamily, *infer.TraceCall) {
	call := &infer.TraceCall{Span: infer.SpanContext{Trace: infer.NewTraceID(), Span: infer.NewSpanID(), Sampled: true}, Admitted: 120}
	call.Envelope = infer.Envelope{Protocol: protocol, Method: "POST", Path: "/v2/models/m/infer", Action: action, Model: "m", Opened: 110,
		Remote: netip.MustParseAddrPort("[::ffff:10.0.0.7]:4000"), Principal: &infer.Principal{Name: "team-a", Tenant: "t", Method: "jwt"}}
	if protocol == "grpc" {
		call.Envelope.Method, call.Envelope.Path = "ModelInfer", ""
	}
	call.Ended = 900
	f := &infer.TraceFamily{IDs: &r.ids, Level: infer.TraceTimestamps, Sink: func(f *infer.TraceFamily) { r.done = append(r.done, f) }}
	f.Open(call)
	return f, call
}

// begin is a request at its model.
func begin(f *infer.TraceFamily, model string) *infer.Trace {
	t := f.Begin(model, "r1")
	t.Start, t.Version, t.Queued = 200, "3", 210
	t.Times = infer.Times{QueueStart: 220, RequestEnd: 800}
	t.Mark("HTTP_RECV_START", 100)
	t.Mark("HTTP_SEND_END", 950)
	return t
}

func computed(t *infer.Trace) {
	t.Times.ComputeStart, t.Times.ComputeInputEnd, t.Times.ComputeOutputStart, t.Times.ComputeEnd = 300, 400, 600, 700
	t.Times.BatchRows = 2
}

func executed(b *infer.TraceBatch, requests int) {
	b.ID, b.Requests, b.Rows, b.Started, b.Ended = 7, requests, requests, 300, 700
	b.Instance, b.Worker, b.Compute = "m_0_0", "cpu", infer.ComputeTimes{Input: 10, Infer: 200, Output: 20}
	b.Done()
}

// spans encodes what has ended and reads it back, as a collector does.
func (r *rig) spans() []*tracepb.Span {
	r.t.Helper()
	e := &encoder{base: 1_000_000, baggage: []string{"team"}, workers: map[string][]byte{}}
	for _, f := range r.done {
		e.family(f)
	}
	var out []*tracepb.Span
	for _, b := range append([][]byte{e.gateway}, e.workers["cpu"], e.workers[""]) {
		var s tracepb.ScopeSpans
		if err := proto.Unmarshal(b, &s); err != nil {
			r.t.Fatal(err)
		}
		if u := s.ProtoReflect().GetUnknown(); len(u) > 0 {
			r.t.Errorf("fields that the message has not: %x", u)
		}
		for _, span := range s.Spans {
			if u := span.ProtoReflect().GetUnknown(); len(u) > 0 {
				r.t.Errorf("span %s has fields that the message has not: %x", span.Name, u)
			}
		}
		out = append(out, s.Spans...)
	}
	if len(out) != e.spans {
		r.t.Errorf("%d spans were counted, %d are there", e.spans, len(out))
	}
	return out
}

// tree is the spans as text, each below its parent, with links by the names of spans.
func tree(spans []*tracepb.Span) string {
	names := map[string]string{}
	for _, s := range spans {
		names[string(s.SpanId)] = s.Name
	}
	var b strings.Builder
	var below func(parent string, depth int)
	below = func(parent string, depth int) {
		for _, s := range spans {
			if p := string(s.ParentSpanId); p != parent && (parent != "" || names[p] != "") {
				continue
			}
			fmt.Fprintf(&b, "%s%s %s %d-%d", strings.Repeat("  ", depth), s.Name, strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")),
				s.StartTimeUnixNano-1_000_000, s.EndTimeUnixNano-1_000_000)
			if s.Flags != 0x101 {
				fmt.Fprintf(&b, " flags=%#x", s.Flags)
			}
			if s.TraceState != "" {
				fmt.Fprintf(&b, " state=%s", s.TraceState)
			}
			for _, a := range s.Attributes {
				fmt.Fprintf(&b, " %s=%s", a.Key, a.Value.GetStringValue())
				if _, number := a.Value.Value.(*commonpb.AnyValue_IntValue); number {
					fmt.Fprintf(&b, "%d", a.Value.GetIntValue())
				}
			}
			for _, e := range s.Events {
				fmt.Fprintf(&b, " [%s %d]", e.Name, e.TimeUnixNano-1_000_000)
			}
			for _, l := range s.Links {
				fmt.Fprintf(&b, " ->%s", names[string(l.SpanId)])
			}
			if s.Status != nil {
				fmt.Fprintf(&b, " %s %q", s.Status.Code, s.Status.Message)
			}
			b.WriteByte('\n')
			below(string(s.SpanId), depth+1)
		}
	}
	below("", 0)
	return b.String()
}

func (r *rig) golden(name string) {
	r.t.Helper()
	got := tree(r.spans())
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			r.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	if got != string(want) {
		r.t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

func TestOneRequest(t *testing.T) {
	r := &rig{t: t}
	f, call := r.open("http", infer.ActionInference)
	call.Parent, call.State, call.Baggage = infer.NewSpanID(), "vendor=1", "x=y, team=blue%20red;p=1, team2=z"
	call.End = infer.End{Status: 200, Received: 5, Sent: 6}
	tr := begin(f, "m")
	executed((*infer.TraceBatch)(nil).Join(tr), 1)
	computed(tr)
	tr.End()
	f.Close()
	r.golden("request")
}

// Two sampled requests in one batch: it stands in the trace of the first, with links to
// both, and both link to it.
func TestSharedBatch(t *testing.T) {
	r := &rig{t: t}
	var b *infer.TraceBatch
	var opened []*infer.TraceFamily
	for _, model := range []string{"first", "second"} {
		f, call := r.open("grpc", infer.ActionInference)
		call.Envelope.Model = model
		tr := begin(f, model)
		b = b.Join(tr)
		computed(tr)
		tr.End()
		f.Close()
		opened = append(opened, f)
	}
	if len(r.done) != 0 {
		t.Fatal("a family was complete before its batch")
	}
	executed(b, 3)
	slices.SortFunc(r.done, func(a, b *infer.TraceFamily) int { return slices.Index(opened, a) - slices.Index(opened, b) })
	r.golden("batch")
}

func TestEnsemble(t *testing.T) {
	r := &rig{t: t}
	f, _ := r.open("http", infer.ActionInference)
	top := begin(f, "pipeline")
	for _, name := range []string{"decode", "score"} {
		step := top.Child(name, "r1")
		step.Start, step.Version, step.Queued = 250, "1", 251
		step.Times = infer.Times{QueueStart: 260, RequestEnd: 720}
		executed((*infer.TraceBatch)(nil).Join(step), 1)
		computed(step)
		step.End()
	}
	computed(top) // the answer's times are those of its last step
	top.End()
	f.Close()
	r.golden("ensemble")
}

func TestCache(t *testing.T) {
	r := &rig{t: t}
	f, _ := r.open("http", infer.ActionInference)
	hit := begin(f, "m")
	hit.Times.CacheHit, hit.Times.CacheLookup, hit.Times.Cache = true, 15, infer.CacheHit
	hit.End()
	f.Close()
	f, _ = r.open("http", infer.ActionInference)
	miss := begin(f, "m")
	miss.Times.CacheLookup, miss.Times.Cache = 150, infer.CacheMiss // with the keeping
	computed(miss)
	miss.End()
	f.Close()
	r.golden("cache")
}

func TestFailures(t *testing.T) {
	r := &rig{t: t}
	refused := infer.Refusef(infer.ResourceExhausted, infer.ReasonRate, "too many")
	f, call := r.open("http", infer.ActionInference)
	call.Refused, call.End = refused, infer.End{Status: 429, Err: refused}
	f.Close()

	late := infer.Refusef(infer.Unavailable, infer.ReasonQueueTimeout, "waited")
	f, call = r.open("http", infer.ActionInference)
	call.End = infer.End{Status: 503, Err: late}
	tr := begin(f, "waited")
	tr.Err = late
	tr.End()
	f.Close()

	f, call = r.open("http", infer.ActionInference)
	bad := infer.Errorf(infer.InvalidArg, "no \xff input")
	call.End = infer.End{Status: 400, Err: bad}
	tr = begin(f, "invalid")
	tr.Times.QueueStart, tr.Err = 0, bad
	tr.End()
	f.Close()

	lost := fmt.Errorf("gone: %w", infer.ErrWorkerLost)
	f, call = r.open("http", infer.ActionInference)
	call.End = infer.End{Status: 500, Err: lost}
	tr = begin(f, "tried again")
	first := (*infer.TraceBatch)(nil).Join(tr)
	first.Started, first.Ended, first.Err, first.Requests, first.Rows = 230, 240, lost, 1, 1
	first.Done()
	second := (*infer.TraceBatch)(nil).Join(tr)
	second.Attempt = 1
	executed(second, 1)
	computed(tr)
	tr.End()
	f.Close()
	r.golden("failures")
}

func TestControl(t *testing.T) {
	r := &rig{t: t}
	f, call := r.open("http", infer.ActionModelRepository)
	call.Envelope.Path, call.Envelope.Model, call.End.Status = "/v2/repository/models/my%20model/load", "my model", 200
	f.Close()
	f, call = r.open("grpc", infer.ActionModelRepository)
	call.Envelope.Method = "RepositoryModelLoad"
	f.Close()
	f, call = r.open("http", infer.ActionHealth)
	call.Envelope.Method, call.Envelope.Path, call.Envelope.Model, call.End.Status = "GET", "/anything", "", 404
	f.Close()
	r.golden("control")
}

// No text of a client's can make a message that a collector refuses.
func FuzzTexts(f *testing.F) {
	f.Add("a", "b=c", "d")
	f.Add("\xff", "team=%zz,team=\xc3\x28", strings.Repeat("é", maxText))
	f.Fuzz(func(t *testing.T, model, baggage, message string) {
		r := &rig{t: t}
		fam, call := r.open("http", infer.ActionInference)
		call.Baggage, call.State, call.Envelope.Path, call.Envelope.RequestID = baggage, message, model, model
		call.End.Err = errors.New(message)
		tr := begin(fam, model)
		tr.Err = errors.New(message)
		tr.End()
		fam.Close()
		for _, s := range r.spans() {
			for _, a := range s.Attributes {
				if len(a.Value.GetStringValue()) > 3*maxText {
					t.Errorf("%s has %d bytes", a.Key, len(a.Value.GetStringValue()))
				}
			}
		}
	})
}

func BenchmarkFamily(b *testing.B) {
	r := &rig{}
	f, call := r.open("http", infer.ActionInference)
	call.Parent = infer.NewSpanID()
	tr := begin(f, "m")
	executed((*infer.TraceBatch)(nil).Join(tr), 1)
	computed(tr)
	tr.End()
	f.Close()
	e := &encoder{workers: map[string][]byte{}}
	b.ReportAllocs()
	for b.Loop() {
		e.family(f)
		if e.spans > 512 {
			e.reset()
		}
	}
}

// Names that callers choose are none of a span's name, however they are written.
func TestNamesOfCalls(t *testing.T) {
	for path, want := range map[string]string{
		"/v2":                                         "GET /v2",
		"/v2/models/stats":                            "GET /v2/models/stats",
		"/v2/models/%6Dlp":                            "GET /v2/models/{model}",
		"/v2/models/models/versions/3/config":         "GET /v2/models/{model}/versions/{version}/config",
		"/v2/repository/index":                        "GET /v2/repository/index",
		"/v2/repository/models/m/load":                "GET /v2/repository/models/{model}/load",
		"/v2/repository/mine/models/m/load":           "GET /v2/repository/{repository}/models/{model}/load",
		"/v2/systemsharedmemory/region/r-4711/status": "GET /v2/systemsharedmemory/region/{region}/status",
		"/v2/cudasharedmemory/region/r-4711/register": "GET /v2/cudasharedmemory/region/{region}/register",
	} {
		if got := callName(&infer.Envelope{Protocol: "http", Method: "GET", Path: path, Action: infer.ActionMetadata}, 200); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
