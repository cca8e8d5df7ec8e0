package httpapi

import (
	"context"
	"strings"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/tracing"
)

// received marks when the request came, and keeps its trace until the reply is sent.
// The reception ends where the request begins at its model, or was given up.
func (r *Reply) received(req *infer.Request) {
	t := req.Trace
	if t == nil {
		return
	}
	r.trace = t
	t.Mark("HTTP_RECV_START", req.Times.RequestStart)
	end := t.Start
	if end == 0 {
		end = req.Times.RequestEnd
	}
	t.Mark("HTTP_RECV_END", end)
}

// sent marks that the transport has taken the reply and ends its trace.
func (r *Reply) sent() {
	r.trace.Mark("HTTP_SEND_START", r.sendStart)
	r.trace.Mark("HTTP_SEND_END", infer.Now())
	r.trace.End()
	r.trace, r.sendStart = nil, 0
}

// traceSetting answers GET and POST of the trace settings.
func (a *API) traceSetting(ctx context.Context, call *Call, rt route, reply *Reply) error {
	req := &inference.TraceSettingRequest{ModelName: rt.model}
	if call.Method == "POST" {
		if _, err := a.control.TraceSettings(req); err != nil {
			return err // the model, before the body, as in the original
		}
		body, err := a.document(ctx, call)
		if err != nil {
			return err
		}
		if req.Settings, err = traceSettings(body); err != nil {
			return err
		}
	}
	m, err := a.control.TraceSettings(req)
	if err != nil {
		return err
	}
	reply.json(appendTraceSettings(reply.buf[:0], m))
	return nil
}

// traceSettings reads the members of a body. null clears, which the message says by an
// empty value. Faults of types come in the order in which the original looks, after the
// file, which can't be set at all.
func traceSettings(body []byte) (map[string]*inference.TraceSettingRequest_SettingValue, error) {
	settings := map[string]*inference.TraceSettingRequest_SettingValue{}
	faults := map[string]error{}
	err := members(body, func(s *json.Scanner, key string) error {
		if _, ok := settings[key]; ok {
			return s.Skip() // the first counts
		}
		v := &inference.TraceSettingRequest_SettingValue{}
		settings[key] = v
		if key == "trace_file" || s.Kind() == json.Null {
			return s.Skip()
		}
		var err error
		if key == "trace_level" {
			v.Value, err = list(s)
		} else {
			var one string
			one, err = str(s)
			v.Value = []string{one}
		}
		if e, ok := err.(*json.Error); ok && !e.Syntax {
			faults[key], err = err, nil
		}
		if key == "trace_level" && len(v.Value) == 0 {
			delete(settings, key) // an empty list names no level, and changes nothing
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if settings["trace_file"] != nil {
		return settings, nil
	}
	for _, name := range tracing.Names() {
		if fault := faults[name]; fault != nil {
			return nil, jsonFault(fault, "")
		}
	}
	return settings, nil
}

// str reads a string; what is none is passed over.
func str(s *json.Scanner) (string, error) {
	if s.Kind() != json.String {
		if err := s.Skip(); err != nil {
			return "", err
		}
		return "", &json.Error{Text: json.NotString}
	}
	b, err := s.Str()
	return string(b), err
}

// list reads a list of strings.
func list(s *json.Scanner) ([]string, error) {
	if s.Kind() != json.Array {
		if err := s.Skip(); err != nil {
			return nil, err
		}
		return nil, &json.Error{Text: json.NotArray}
	}
	if err := s.Open(); err != nil {
		return nil, err
	}
	var out []string
	var meaning error
	for {
		more, err := s.Next()
		if err != nil {
			return out, err
		}
		if !more {
			return out, meaning
		}
		v, err := str(s)
		if e, ok := err.(*json.Error); ok && !e.Syntax {
			if meaning == nil {
				meaning = err
			}
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, v)
	}
}

// appendTraceSettings appends the answer of the trace extension.
func appendTraceSettings(b []byte, m *inference.TraceSettingResponse) []byte {
	settings := m.GetSettings()
	first := true
	member := func(name string) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(json.AppendString(b, name), ':')
	}
	b = append(b, '{')
	for _, name := range tracing.ShownNames(strings.Join(settings["trace_mode"].GetValue(), ""), settings) {
		values := settings[name].GetValue()
		if name == "trace_level" {
			member(name)
			b = appendStrings(b, values)
			continue
		}
		if len(values) == 0 {
			values = []string{""}
		}
		for _, v := range values { // several resource attributes are several members, as in the original
			member(name)
			b = json.AppendString(b, v)
		}
	}
	return append(b, '}')
}

func appendStrings(b []byte, values []string) []byte {
	b = append(b, '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = json.AppendString(b, v)
	}
	return append(b, ']')
}
