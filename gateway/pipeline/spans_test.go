package pipeline

import (
	"context"
	"log/slog"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// taken are the families of sampled calls.
type taken struct{ families []*infer.TraceFamily }

func (k *taken) Take(f *infer.TraceFamily) { k.families = append(k.families, f) }

// no refuses every call.
type no struct{ err error }

func (g no) Open(context.Context, *infer.Envelope) error { return g.err }
func (g no) Model(*infer.Envelope, string) error         { return g.err }

// spanned is a pipeline in mode opentelemetry that samples every inference.
func spanned(m *model, guard Guard) (*Pipeline, *taken) {
	x := tracing.DefaultExport()
	k := &taken{}
	t := tracing.New(tracing.Settings{Level: infer.TraceTimestamps, Rate: 1, Count: -1, Export: &x},
		tracing.Deps{Log: slog.New(slog.DiscardHandler), Spans: k})
	return New(Config{}, Deps{Models: models{m}, Guard: guard, Tracer: t}), k
}

// call is one call from opening to end, as a front end makes it.
func call(t *testing.T, p *Pipeline, name string) (*infer.Envelope, error) {
	t.Helper()
	env := &infer.Envelope{Protocol: "http", Action: infer.ActionInference, Model: name, Header: func(string) string { return "" }}
	_, err := p.Open(t.Context(), env)
	req := &infer.Request{Model: name, Envelope: env}
	if err == nil {
		err = carry(t.Context(), p, req, release)
	}
	p.Close(env, &infer.End{Err: err, Request: req})
	return env, err
}

func TestSpansOfACall(t *testing.T) {
	bad := infer.Errorf(infer.InvalidArg, "bad")
	for name, row := range map[string]struct {
		m             model
		model         string
		guard         Guard
		refused, fail bool // when the call opens; when its request is at its model
	}{
		"answered":     {model: "m"},
		"unknown":      {model: "x", refused: true},
		"unauthorized": {model: "m", guard: no{bad}, refused: true},
		"invalid":      {model: "m", m: model{invalid: bad}, fail: true},
		"failed":       {model: "m", m: model{fails: bad}, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, k := spanned(&row.m, row.guard)
			env, err := call(t, p, row.model)
			if (err != nil) != (row.refused || row.fail) {
				t.Fatalf("got %v", err)
			}
			if len(k.families) != 1 {
				t.Fatalf("%d families", len(k.families))
			}
			f := k.families[0]
			c := f.Call
			if c.Span != env.Span || !c.Span.Sampled || c.Admitted < env.Opened || c.Ended < c.Admitted {
				t.Errorf("opened %d, %+v", env.Opened, c)
			}
			if (c.Refused != nil) != row.refused || c.End.Err != err {
				t.Errorf("refused: %v; ended: %v", c.Refused, c.End.Err)
			}
			if row.refused {
				if len(f.Traces) != 0 {
					t.Errorf("%d requests at a model", len(f.Traces))
				}
				return
			}
			tr := f.Traces[0]
			if tr.Err != err || tr.Start < c.Admitted || tr.Times.RequestEnd > c.Ended || tr.Span == (infer.SpanID{}) {
				t.Errorf("got %+v", tr)
			}
		})
	}
}
