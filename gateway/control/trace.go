package control

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/tracing"
)

// TraceSettings changes the settings that the request names, of its model or with none
// globally, and returns all of them. An empty value clears a setting. Without a tracer
// all is off and nothing can be changed.
// Source: the trace extension; texts of the original.
func (s *Server) TraceSettings(req *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error) {
	model := req.GetModelName()
	if model != "" {
		if ok, err := s.models.ModelReady(model, ""); err != nil || !ok {
			return nil, infer.Errorf(infer.InvalidArg, "Request for unknown model : %s", model)
		}
	}
	settings := tracing.DefaultSettings()
	if s.tracer == nil {
		if len(req.GetSettings()) > 0 {
			return nil, infer.Errorf(infer.Unavailable, "the server does not support tracing")
		}
	} else {
		given := map[string][]string{}
		for name, v := range req.GetSettings() {
			given[name] = v.GetValue()
		}
		c, err := tracing.ParseChange(given)
		if err != nil {
			return nil, err
		}
		if err := s.tracer.Update(model, c); err != nil {
			return nil, err
		}
		settings = s.tracer.Settings(model)
	}
	resp := &inference.TraceSettingResponse{Settings: map[string]*inference.TraceSettingResponse_SettingValue{}}
	for name, values := range settings.Values() {
		resp.Settings[name] = &inference.TraceSettingResponse_SettingValue{Value: values}
	}
	return resp, nil
}
