package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// family is a trace of the test's own, whose end it hears of.
func family(ended func(*infer.TraceFamily)) *infer.TraceFamily {
	f := &infer.TraceFamily{Level: infer.TraceTimestamps | infer.TraceTensors, IDs: &atomic.Uint64{}, Sink: ended, Room: 1 << 20, Budget: &atomic.Int64{}}
	f.Budget.Store(1 << 20)
	return f
}

func release(r *infer.Response) error { r.Memory.Release(); return nil }

func TestTrace(t *testing.T) {
	var got *infer.Trace
	root := family(func(f *infer.TraceFamily) { got = f.Traces[0] }).Begin("m", "r")
	req := &infer.Request{Model: "m", Trace: root, Inputs: []infer.Tensor{{Name: "x", Data: []byte{1}}}}
	if err := carry(t.Context(), over(models{&model{}}), req, release); err != nil {
		t.Fatal(err)
	}
	if got != root || got.Start == 0 || got.Times.RequestEnd < got.Start {
		t.Fatalf("got %+v", got)
	}
	if len(got.Marks) != 1 || got.Marks[0].Name != "INFER_RESPONSE_COMPLETE" || got.Marks[0].At < got.Start {
		t.Errorf("marks %+v", got.Marks)
	}
	var tensors []string
	for _, x := range got.Tensors {
		tensors = append(tensors, x.Activity+" "+x.Name)
	}
	if s := strings.Join(tensors, ", "); s != "TENSOR_QUEUE_INPUT x, TENSOR_BACKEND_OUTPUT scores, TENSOR_BACKEND_OUTPUT other" {
		t.Errorf("tensors %s", s)
	}
}

// Whatever becomes of a request, its trace ends exactly once: by the pipeline, or by a
// front end that said so.
func TestTraceEnds(t *testing.T) {
	for name, c := range map[string]struct {
		m     model
		model string
	}{
		"answered": {model{}, "m"},
		"unknown":  {model{}, "x"},
		"invalid":  {model{invalid: infer.Errorf(infer.InvalidArg, "bad")}, "m"},
		"failed":   {model{fails: infer.Errorf(infer.Internal, "bad")}, "m"},
		"a bug":    {model{panics: true}, "m"},
	} {
		for _, front := range []bool{false, true} {
			ends := 0
			req := &infer.Request{Model: c.model, TraceSend: front, Trace: family(func(*infer.TraceFamily) { ends++ }).Begin("m", "")}
			_ = carry(t.Context(), over(models{&c.m}), req, release) // the failure is not this test's
			if front {
				if ends != 0 {
					t.Errorf("%s: ended before its front end said so", name)
				}
				req.Trace.End()
			}
			if ends != 1 {
				t.Errorf("%s, front end %v: ended %d times", name, front, ends)
			}
		}
	}
}

// on is a tracer that samples every request; nothing is written.
func on(t *testing.T) *tracing.Tracer {
	t.Helper()
	return tracing.New(tracing.Settings{Level: infer.TraceTimestamps, Rate: 1, Count: -1, File: "t"}, tracing.Deps{Log: slog.New(slog.DiscardHandler)})
}

func TestSampling(t *testing.T) {
	p := New(Config{}, Deps{Models: models{&model{}}, Tracer: on(t)})
	for name, run := range map[string]func(*infer.Request){
		"answered": func(req *infer.Request) { _ = carry(t.Context(), p, req, release) },
		"refused":  func(req *infer.Request) { p.Refused(t.Context(), req, infer.Errorf(infer.InvalidArg, "bad")) },
	} {
		req := &infer.Request{Model: "m", TraceSend: true}
		run(req)
		if req.Trace == nil || (req.Trace.Start != 0) != (name == "answered") {
			t.Errorf("%s: trace %+v", name, req.Trace)
		}
	}
	unknown := &infer.Request{Model: "x"}
	if err := carry(t.Context(), p, unknown, release); err == nil || unknown.Trace != nil {
		t.Errorf("unknown model: %v, trace %v", err, unknown.Trace)
	}
	var env infer.Envelope
	if _, err := p.Open(t.Context(), &env); err != nil || env.Opened == 0 {
		t.Errorf("opened at %d, %v", env.Opened, err)
	}
}

// quiet answers without allocating.
type quiet struct{ *model }

func (quiet) Do(context.Context, *infer.Request, infer.SendFunc) error { return nil }
func (quiet) Validate(*infer.Request) error                            { return nil }
func (quiet) Release()                                                 {}
func (quiet) Done(*infer.Request, error)                               {}

type quietModels struct {
	models
	quiet quiet
}

func (m quietModels) Acquire(context.Context, string, string) (Model, error) { return m.quiet, nil }

func TestTracingOffAllocatesNothing(t *testing.T) {
	allocations := func(tracer *tracing.Tracer) float64 {
		m := &model{}
		p := New(Config{}, Deps{Models: quietModels{models{m}, quiet{m}}, Tracer: tracer})
		req := &infer.Request{Model: "m"}
		var before, after runtime.MemStats
		const runs = 2000
		runtime.ReadMemStats(&before)
		for range runs {
			if err := carry(t.Context(), p, req, release); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / runs
	}
	off := tracing.New(tracing.DefaultSettings(), tracing.Deps{Log: slog.New(slog.DiscardHandler)})
	// The race detector empties pools now and then, so neither is a whole number.
	if without, with := allocations(nil), allocations(off); with > without+0.5 {
		t.Errorf("%v allocations with tracing off, %v without", with, without)
	}
}

// A bug of ours in a step ends its request as any other failure: it is recorded at its
// model, and its trace ends.
func TestABugInAStepIsRecorded(t *testing.T) {
	ends := 0
	m := &model{panics: true}
	root := family(func(*infer.TraceFamily) { ends++ }).Begin("top", "")
	child := root.Child("m", "")
	err := over(models{m}).Step(t.Context(), m, &infer.Request{Model: "m", Trace: child}, release)
	root.End()
	var bug *infer.Bug
	if !errors.As(err, &bug) || child.Err == nil || ends != 1 || !slices.Contains(m.steps, "failed") {
		t.Errorf("got %v, %d ends, %v", err, ends, m.steps)
	}
}
