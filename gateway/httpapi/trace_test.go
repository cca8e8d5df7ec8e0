package httpapi

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// traced is a fake whose every request is sampled; it tells of traces that have ended.
func traced(then func(*infer.Request, infer.SendFunc) error) (*fake, *[]*infer.Trace) {
	var ended []*infer.Trace
	var ids atomic.Uint64
	family := func(req *infer.Request) {
		f := &infer.TraceFamily{Level: infer.TraceTimestamps, IDs: &ids, Sink: func(f *infer.TraceFamily) { ended = append(ended, f.Traces...) }}
		req.Trace = f.Begin(req.Model, req.ID)
		req.Trace.Start = infer.Now()
	}
	return &fake{infer: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		family(req)
		return then(req, send)
	}}, &ended
}

func marks(t *infer.Trace) string {
	var names []string
	last := int64(0)
	for _, m := range t.Marks {
		names = append(names, m.Name)
		if m.At < last {
			return "not in order"
		}
		last = m.At
	}
	return strings.Join(names, " ")
}

// A trace ends once its reply was released, whatever the answer is.
func TestTraceMarks(t *testing.T) {
	for name, then := range map[string]func(*infer.Request, infer.SendFunc) error{
		"answered": func(req *infer.Request, send infer.SendFunc) error { return send(identity(req)) },
		"failed":   func(*infer.Request, infer.SendFunc) error { return infer.Errorf(infer.Internal, "x") },
		"panic":    func(*infer.Request, infer.SendFunc) error { panic("x") },
	} {
		f, ended := traced(then)
		a := newFakeAPI(f, APIConfig{})
		ask(t.Context(), a, "POST", "/v2/models/two/infer", `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}`, nil)
		if len(*ended) != 1 || marks((*ended)[0]) != "HTTP_RECV_START HTTP_RECV_END HTTP_SEND_START HTTP_SEND_END" {
			t.Errorf("%s: %d traces ended", name, len(*ended))
			for _, tr := range *ended {
				t.Errorf("%s: marks %s", name, marks(tr))
			}
		}
	}
}

// null and what has no type of its own reach control as they are meant.
func TestTraceSettingsReachControl(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                         `{"trace_level":["OFF"],"trace_rate":"","trace_count":"","log_frequency":"","trace_file":"","trace_mode":""}`,
		`{"trace_level":null}`:       `{"trace_level":[],"trace_rate":"","trace_count":"","log_frequency":"","trace_file":"","trace_mode":""}`,
		`{"trace_level":[]}`:         `{"trace_level":["OFF"],"trace_rate":"","trace_count":"","log_frequency":"","trace_file":"","trace_mode":""}`,
		`{"trace_level":["A","\""]}`: `{"trace_level":["A","\""],"trace_rate":"","trace_count":"","log_frequency":"","trace_file":"","trace_mode":""}`,
		`{"trace_rate":"9","trace_rate":"8","nope":{"a":[1]}}`: `{"trace_level":["OFF"],"trace_rate":"9","trace_count":"","log_frequency":"","trace_file":"","trace_mode":""}`,
	} {
		got := ask(t.Context(), newFakeAPI(&fake{}, APIConfig{}), "POST", "/v2/models/two/trace/setting", body, nil)
		if got.status != 200 || got.body != want {
			t.Errorf("%s: got %d %s, want %s", body, got.status, got.body, want)
		}
	}
}

func FuzzTraceSettings(f *testing.F) {
	f.Add([]byte(`{"trace_level":["OFF",1],"trace_rate":"5","trace_count":null}`))
	f.Add([]byte(`[1,{"a":`))
	f.Fuzz(func(t *testing.T, body []byte) {
		settings, err := traceSettings(body)
		if err == nil && settings == nil || err != nil && settings != nil {
			t.Errorf("%q: %v, %v", body, settings, err)
		}
	})
}
