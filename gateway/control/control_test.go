package control

import (
	"bytes"
	"context"
	"testing"

	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// models is a Models whose readiness can be set; the rest is not called.
type models struct {
	Models
	ready bool
	soon  bool // Degraded
}

func (r *models) Ready() bool                             { return r.ready }
func (r *models) Degraded() bool                          { return r.soon }
func (r *models) ModelReady(string, string) (bool, error) { return r.ready, nil }

func server() (*Server, *models) {
	r := &models{ready: true}
	return New("triton", "1", Deps{Models: r, Log: logging.New(&bytes.Buffer{}, logging.DefaultSettings())}), r
}

// A server is degraded only while it serves, and while it is not ready.
func TestDegraded(t *testing.T) {
	s, r := server()
	for _, c := range []struct {
		name        string
		change      func()
		ready, want bool
	}{
		{"starting", func() { r.ready, r.soon = false, true }, false, false},
		{"serving", s.Serving, false, true},
		{"ready", func() { r.ready = true }, true, false},
		{"lost for longer", func() { r.ready, r.soon = false, false }, false, false},
		{"stopping", func() { r.soon = true; s.Stopping() }, false, false},
	} {
		if c.change(); s.Ready() != c.ready || s.Degraded() != c.want {
			t.Errorf("%s: ready %v, degraded %v, want %v, %v", c.name, s.Ready(), s.Degraded(), c.ready, c.want)
		}
	}
}

func TestReadiness(t *testing.T) {
	s, r := server()
	ctx, cancel := context.WithCancel(t.Context())
	news := s.WatchReady(ctx)
	heard := func(when string, want bool) {
		t.Helper()
		if got := <-news; got != want || s.Ready() != want {
			t.Errorf("%s: heard %v, ready %v, want %v", when, got, s.Ready(), want)
		}
	}
	heard("before the start is over", false)
	s.Serving()
	heard("serving", true)
	r.ready = false
	s.Changed()
	heard("a model is not ready", false)
	r.ready = true
	s.Changed()
	s.Changed()
	s.Stopping()
	heard("stopping, the newest value only", false)
	if ok, err := s.ModelReady("m", ""); ok || err != nil || !s.Live() {
		t.Errorf("stopping: model ready %v, %v, live %v", ok, err, s.Live())
	}
	cancel()
	if _, open := <-news; open {
		t.Error("news after the watch ended")
	}
	s.Serving()
	if s.Ready() {
		t.Error("serving again after stopping")
	}
}

func TestLogSettingsTypeText(t *testing.T) {
	s, _ := server()
	_, err := s.LogSettings(&inference.LogSettingsRequest{Settings: map[string]*inference.LogSettingsRequest_SettingValue{
		"log_verbose_level": {ParameterChoice: &inference.LogSettingsRequest_SettingValue_BoolParam{BoolParam: true}},
	}})
	if want := "expect int32 for 'log_verbose_level'"; err == nil || err.Error() != want { // the original's words
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLogSettings(t *testing.T) {
	s, _ := server()
	on := func(v bool) *inference.LogSettingsRequest_SettingValue {
		return &inference.LogSettingsRequest_SettingValue{ParameterChoice: &inference.LogSettingsRequest_SettingValue_BoolParam{BoolParam: v}}
	}
	text := func(v string) *inference.LogSettingsRequest_SettingValue {
		return &inference.LogSettingsRequest_SettingValue{ParameterChoice: &inference.LogSettingsRequest_SettingValue_StringParam{StringParam: v}}
	}
	type settings = map[string]*inference.LogSettingsRequest_SettingValue
	for _, c := range []struct {
		name string
		set  settings
		code infer.Code
		ok   bool
	}{
		{"nothing", nil, 0, true},
		{"info off", settings{"log_info": on(false)}, 0, true},
		{"file", settings{"log_file": text("x")}, infer.Unsupported, false},
		{"format", settings{"log_format": text("xml")}, infer.InvalidArg, false},
		{"type", settings{"log_error": text("x"), "log_warning": on(false)}, infer.InvalidArg, false},
		{"unknown", settings{"log_nope": on(true)}, 0, true},
	} {
		resp, err := s.LogSettings(&inference.LogSettingsRequest{Settings: c.set})
		if (err == nil) != c.ok || (err != nil && infer.CodeOf(err) != c.code) {
			t.Errorf("%s: got %v, want success %v, code %s", c.name, err, c.ok, c.code)
		}
		if err == nil && len(resp.Settings) != 6 {
			t.Errorf("%s: %d settings", c.name, len(resp.Settings))
		}
	}
	if got := s.log.Settings(); got.Info || !got.Warning {
		t.Errorf("in force: %+v, want info off and warning on", got)
	}
}
