package httpapi

import (
	"context"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// maxControl bounds the body of a control call.
const maxControl = 1 << 20

// serveControl answers everything but inference.
func (a *API) serveControl(ctx context.Context, call *Call, rt route, reply *Reply) {
	env := &infer.Envelope{}
	a.envelope(env, call, rt)
	env.Header, env.Fields, call.env = call.Header.Get, call.Header, env
	var end infer.End
	defer func() {
		end.Status, end.Received, end.Sent = reply.Status, call.read, reply.Length
		a.pipeline.Close(env, &end)
	}()
	err := a.open(ctx, env)
	if err == nil {
		err = a.answer(env.Context(ctx), call, rt, reply)
	}
	if err == nil {
		err = reply.hold(a.responses)
	}
	if err != nil {
		end.Err = err
		a.fail(ctx, call, nil, reply, err)
	}
}

// answer answers one control call or gives the error for it.
func (a *API) answer(ctx context.Context, call *Call, rt route, reply *Reply) error {
	if call.alias != nil && call.alias.own != nil {
		return call.alias.own.Answer(ctx, &Question{call, a}, reply)
	}
	switch rt.kind {
	case routeLive:
		return health(reply, a.control.Live(), nil, "")
	case routeReady:
		return a.readiness(ctx, call, reply)
	case routeModelReady:
		ready, err := a.control.ModelReadyNow(ctx, rt.model, rt.version)
		return health(reply, ready, err, "Model version not ready")
	case routeServer:
		return reply.message(a.control.ServerMetadata(), nil)
	case routeModel:
		m, err := a.control.ModelMetadata(rt.model, rt.version)
		return reply.message(m, err)
	case routeConfig:
		m, err := a.control.ModelConfig(rt.model, rt.version)
		return reply.message(m, err)
	case routeStats, routeAllStats:
		m, err := a.control.Statistics(rt.model, rt.version)
		if err != nil {
			return err
		}
		reply.json(appendStatistics(reply.buf[:0], a.statistics(call.env, m)))
		return nil
	case routeIndex:
		return a.index(ctx, call, reply)
	case routeLogging:
		return a.logging(ctx, call, reply)
	case routePurge:
		return a.purge(ctx, call, reply)
	case routeTrace:
		return a.traceSetting(ctx, call, rt, reply)
	case routeLoad, routeUnload, routeRepositoryLoad:
		return a.repositoryCall(ctx, call, rt, reply)
	}
	return a.memoryCall(ctx, call, rt, reply)
}

// DegradedHeader is what a health check of a mesh sends with "accept" to be answered 200
// while some models serve, or workers are started again, with X-Envoy-Degraded: a proxy that
// has no better gateway sends calls here then. Without it readiness is ready or not.
const DegradedHeader = "X-Sluice-Degraded"

// envoyDegraded is the field by which Envoy's health checks know a degraded host.
// Source: Envoy's documentation of degraded endpoints.
const envoyDegraded = "X-Envoy-Degraded"

func (a *API) readiness(ctx context.Context, call *Call, r *Reply) error {
	ready := a.control.ReadyNow(ctx)
	if !ready && call.Header.Get(DegradedHeader) == "accept" && a.control.Degraded() {
		r.empty(200)
		r.Set(envoyDegraded, "true")
		return nil
	}
	return health(r, ready, nil, "")
}

// health is an empty 200, or 400 with the text there is.
func health(r *Reply, ok bool, err error, text string) error {
	switch {
	case ok && err == nil:
		r.empty(200)
	case text == "":
		r.empty(400)
	default:
		r.text(400, text)
	}
	return nil
}

func (r *Reply) message(m proto.Message, err error) error {
	if err != nil {
		return err
	}
	r.json(appendMessage(r.buf[:0], m))
	return nil
}

// json makes the reply a JSON answer; b grew from r.buf.
func (r *Reply) json(b []byte) {
	r.reset()
	r.Status = 200
	r.ContentType = typeJSON
	r.setBody(b)
}

// document reads the whole body of a control call.
func (a *API) document(ctx context.Context, call *Call) ([]byte, error) {
	b := bodyReader{ctx: ctx, from: call.Body, length: call.Length}
	defer func() { call.read = b.read }()
	return b.prefix(nil, call.Length, maxControl)
}

func (a *API) index(ctx context.Context, call *Call, reply *Reply) error {
	body, err := a.document(ctx, call)
	if err != nil {
		return err
	}
	ready := false
	if len(body) > 0 {
		err := members(body, func(s *json.Scanner, key string) (err error) {
			if key == "ready" {
				ready, err = boolean(s)
				return err
			}
			return s.Skip()
		})
		if err != nil {
			return err
		}
	}
	m, err := a.control.Index(ready)
	if err != nil {
		return err
	}
	reply.json(appendIndex(reply.buf[:0], a.models(call.env, m)))
	return nil
}

func (a *API) logging(ctx context.Context, call *Call, reply *Reply) error {
	req := &inference.LogSettingsRequest{Settings: map[string]*inference.LogSettingsRequest_SettingValue{}}
	if call.Method == "POST" {
		body, err := a.document(ctx, call)
		if err != nil {
			return err
		}
		err = members(body, func(s *json.Scanner, key string) error { return logSetting(req, s, key) })
		if err != nil {
			return err
		}
	}
	m, err := a.control.LogSettings(req)
	if err != nil {
		return err
	}
	reply.json(appendLogSettings(reply.buf[:0], m))
	return nil
}

// logSetting reads one setting; unknown ones and nulls are ignored, as in the original.
func logSetting(req *inference.LogSettingsRequest, s *json.Scanner, key string) error {
	if s.Kind() == json.Null {
		return s.Skip()
	}
	var v inference.LogSettingsRequest_SettingValue
	switch key {
	case "log_file":
		if err := s.Skip(); err != nil {
			return err
		}
		return infer.Errorf(infer.Unsupported, "log file location can not be updated through network protocol")
	case "log_info", "log_warning", "log_error":
		b, err := boolean(s)
		if err != nil {
			return err
		}
		v.ParameterChoice = &inference.LogSettingsRequest_SettingValue_BoolParam{BoolParam: b}
	case "log_verbose_level":
		n, err := s.Uint()
		if err == nil && n > math.MaxUint32 {
			err = &json.Error{Text: json.NotUint}
		}
		if err != nil {
			return err
		}
		v.ParameterChoice = &inference.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(n)}
	case "log_format":
		if s.Kind() != json.String {
			if err := s.Skip(); err != nil {
				return err
			}
			return &json.Error{Text: json.NotString}
		}
		str, err := s.Str()
		if err != nil {
			return err
		}
		v.ParameterChoice = &inference.LogSettingsRequest_SettingValue_StringParam{StringParam: string(str)}
	default:
		return s.Skip()
	}
	if _, ok := req.Settings[key]; !ok {
		req.Settings[key] = &v
	}
	return nil
}

func boolean(s *json.Scanner) (bool, error) {
	if s.Kind() != json.Bool {
		if err := s.Skip(); err != nil {
			return false, err
		}
		return false, &json.Error{Text: json.NotBool}
	}
	return s.Bool()
}

// members calls f at each member's value of the object in doc; f reads the value. What
// is JSON but no object has no members. A fault of meaning waits for the document's
// end: one that is no JSON is told so.
func members(doc []byte, f func(s *json.Scanner, key string) error) error {
	var s json.Scanner
	s.Reset(doc)
	var meaning error
	err := s.Empty()
	switch {
	case err != nil:
	case s.Kind() != json.Object:
		err = s.Skip()
	default:
		err, meaning = each(&s, f)
	}
	if err == nil {
		err = s.End()
	}
	if err == nil {
		err = meaning
	}
	return jsonFault(err, "")
}

// each calls f at each member's value of the object that comes. It ends at the first
// fault of syntax, and gives the first one of meaning.
func each(s *json.Scanner, f func(s *json.Scanner, key string) error) (err, meaning error) {
	err = s.Open()
	for err == nil {
		var key []byte
		var ok bool
		if key, ok, err = s.Key(); err != nil || !ok {
			break
		}
		if fault := f(s, string(key)); fault != nil {
			if e, ok := fault.(*json.Error); ok && e.Syntax {
				err = fault
			} else if meaning == nil {
				meaning = fault
			}
		}
	}
	return err, meaning
}
