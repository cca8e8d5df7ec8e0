package control

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/tracing"
)

func traceRequest(model string, settings map[string][]string) *inference.TraceSettingRequest {
	r := &inference.TraceSettingRequest{ModelName: model, Settings: map[string]*inference.TraceSettingRequest_SettingValue{}}
	for name, v := range settings {
		r.Settings[name] = &inference.TraceSettingRequest_SettingValue{Value: v}
	}
	return r
}

func TestTraceSettings(t *testing.T) {
	known := &models{ready: true}
	tracer := tracing.New(tracing.Settings{Rate: 5, Count: -1, File: "f"}, tracing.Deps{Log: slog.New(slog.DiscardHandler)})
	s := New("triton", "1", Deps{Models: known, Log: logging.New(&bytes.Buffer{}, logging.DefaultSettings()), Tracer: tracer})
	got, err := s.TraceSettings(traceRequest("m", map[string][]string{"trace_level": {"TENSORS"}, "trace_rate": nil}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"trace_level": "TENSORS", "trace_rate": "5", "trace_count": "-1", "log_frequency": "0",
		"trace_file": "f", "trace_mode": "triton"} {
		if v := got.Settings[name].GetValue(); len(v) != 1 || v[0] != want {
			t.Errorf("%s: got %q, want %q", name, v, want)
		}
	}
	if !tracer.On() || tracer.Settings("").Level != 0 {
		t.Error("the model's level is the server's")
	}
	known.ready = false
	if _, err := s.TraceSettings(traceRequest("m", nil)); err == nil || err.Error() != "Request for unknown model : m" || infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("unknown model: %v", err)
	}
}

func TestTraceSettingsWithoutTracer(t *testing.T) {
	s, _ := server()
	if got, err := s.TraceSettings(traceRequest("", nil)); err != nil || got.Settings["trace_level"].GetValue()[0] != "OFF" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := s.TraceSettings(traceRequest("", map[string][]string{"trace_rate": {"1"}})); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("a change: %v", err)
	}
}
