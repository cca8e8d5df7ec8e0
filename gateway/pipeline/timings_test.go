package pipeline

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func headers(h map[string]string) func(string) string {
	return func(key string) string { return h[key] }
}

// What was opened is in flight until it ends; what was never opened does not count.
func TestInFlight(t *testing.T) {
	var ends []string
	p := New(Config{}, Deps{Models: models{&model{}},
		Ended: func(env *infer.Envelope, _ *infer.End) { ends = append(ends, env.Method) }})
	a, b, never := infer.Envelope{Protocol: "http", Method: "a"}, infer.Envelope{Protocol: "grpc", Method: "b"}, infer.Envelope{Protocol: "http", Method: "never"}
	for _, env := range []*infer.Envelope{&a, &b} {
		if _, err := p.Open(t.Context(), env); err != nil || env.Opened == 0 {
			t.Fatalf("%s: opened at %d, %v", env.Method, env.Opened, err)
		}
	}
	p.Close(&never, &infer.End{})
	if h, g := p.InFlight("http"), p.InFlight("grpc"); h != 1 || g != 1 {
		t.Errorf("%d and %d in flight, want 1 and 1", h, g)
	}
	p.Close(&a, &infer.End{})
	p.Close(&b, &infer.End{})
	if h, g := p.InFlight("http"), p.InFlight("grpc"); h != 0 || g != 0 || len(ends) != 3 {
		t.Errorf("%d and %d in flight, ends %v", h, g, ends)
	}
	refused := infer.Envelope{Protocol: "http", Action: infer.ActionInference, Model: "none"}
	if _, err := p.Open(t.Context(), &refused); err == nil {
		t.Error("a model that is not there was opened")
	}
	p.Close(&refused, &infer.End{})
	if n := p.InFlight("http"); n != 0 {
		t.Errorf("%d in flight after a refusal", n)
	}
}

func TestWhoGetsTimings(t *testing.T) {
	for _, c := range []struct {
		mode  Timings
		value string
		want  bool
	}{{TimingsOnRequest, "1", true}, {TimingsOnRequest, "true", true}, {TimingsOnRequest, "0", false}, {TimingsOnRequest, "", false},
		{TimingsNever, "1", false}, {TimingsAlways, "", true}} {
		p := New(Config{Timings: c.mode}, Deps{Models: models{&model{}}})
		env := infer.Envelope{Protocol: "http", Header: headers(map[string]string{TimingHeader: c.value})}
		if _, err := p.Open(t.Context(), &env); err != nil || env.Timings != c.want {
			t.Errorf("mode %d, header %q: %v, %v", c.mode, c.value, env.Timings, err)
		}
	}
}

// The parameter is answered, and is none of the model's.
func TestTimingParameter(t *testing.T) {
	yes := infer.Param{Name: TimingParam, Value: infer.Value{Kind: infer.KindBool, Bool: true}}
	own := infer.Param{Name: "own", Value: infer.Value{Kind: infer.KindString, Str: "x"}}
	for name, c := range map[string]struct {
		mode   Timings
		params infer.Params
		left   int
		told   bool
		code   infer.Code
		fails  bool
	}{
		"asked":                          {TimingsOnRequest, infer.Params{own, yes}, 1, true, 0, false},
		"not asked":                      {TimingsOnRequest, infer.Params{own}, 1, false, 0, false},
		"always is for the header alone": {TimingsAlways, infer.Params{own}, 1, false, 0, false},
		"never":                          {TimingsNever, infer.Params{yes}, 0, false, 0, false},
		"no bool":                        {TimingsOnRequest, infer.Params{{Name: TimingParam, Value: own.Value}}, 1, false, infer.InvalidArg, true},
	} {
		p := New(Config{Timings: c.mode}, Deps{Models: models{&model{}}})
		req := &infer.Request{Model: "m", Params: c.params}
		var resp *infer.Response
		err := carry(t.Context(), p, req, func(r *infer.Response) error { resp = r; return nil })
		if (err != nil) != c.fails || err != nil && infer.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(req.Params) != c.left {
			t.Errorf("%s: the model sees %v", name, req.Params)
		}
		if err != nil {
			continue
		}
		if _, told := resp.Params.Get("sluice_total_us"); told != c.told {
			t.Errorf("%s: response parameters %v", name, resp.Params)
		}
	}
}
