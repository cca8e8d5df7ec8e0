package httpapi

import (
	"context"
	"encoding/base64"
	"strings"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// repositoryCall answers a load or unload call.
// Source of the texts: the model repository extension in the original's http_server.cc.
func (a *API) repositoryCall(ctx context.Context, call *Call, rt route, reply *Reply) error {
	if rt.kind == routeRepositoryLoad {
		return infer.Errorf(infer.Unsupported, "'repository_name' specification is not supported")
	}
	body, memory, err := a.large(ctx, call)
	if err != nil {
		return err
	}
	defer memory.Release()
	if rt.kind == routeUnload {
		dependents, err := unloadParameters(body)
		if err == nil {
			err = a.control.Unload(ctx, rt.model, dependents)
		}
		if err != nil {
			return err
		}
		reply.empty(200)
		return nil
	}
	params, err := loadParameters(body)
	if err == nil {
		err = a.control.Load(ctx, rt.model, params)
	}
	if err != nil {
		return err
	}
	reply.empty(200)
	return nil
}

// large reads the body of a call that may carry model files, into memory that is
// counted with the bodies of requests.
func (a *API) large(ctx context.Context, call *Call) ([]byte, *infer.Buffer, error) {
	if call.Length >= 0 && call.Length <= maxControl {
		body, err := a.document(ctx, call)
		return body, nil, err
	}
	b := bodyReader{ctx: ctx, from: call.Body, length: call.Length, limit: a.limits.MaxBody}
	defer func() { call.read = b.read }()
	if call.Length > a.limits.MaxBody {
		return nil, nil, bodyTooLarge(call.Length, a.limits.MaxBody)
	}
	if call.Length < 0 {
		body, err := b.prefix(nil, -1, a.limits.MaxJSON)
		return body, nil, err
	}
	t := intake{bodies: a.bodies, growth: growth, total: call.Length}
	if err := t.take(&b, call.Length); err != nil {
		t.drop()
		if infer.ReasonOf(err) == infer.ReasonMemory {
			return nil, nil, err
		}
		return nil, nil, b.fault(err)
	}
	return t.buf.Data[:call.Length], t.buf, nil
}

// loadParameters reads the parameters of a load call: all of them are strings here.
func loadParameters(body []byte) (map[string]*inference.ModelRepositoryParameter, error) {
	params := map[string]*inference.ModelRepositoryParameter{}
	err := parameters(body, func(s *json.Scanner, key string) error {
		if s.Kind() != json.String {
			if err := s.Skip(); err != nil {
				return err
			}
			return &json.Error{Text: json.NotString}
		}
		text, err := s.Str()
		if err != nil {
			return err
		}
		switch {
		case key == "config":
			params[key] = &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: string(text)}}
		case strings.HasPrefix(key, "file:"):
			data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
			n, err := base64.StdEncoding.Decode(data, text)
			if err != nil {
				return infer.Errorf(infer.InvalidArg, "load parameter '%s' is no base64", key)
			}
			params[key] = &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_BytesParam{BytesParam: data[:n]}}
		default:
			return infer.CallerErrorf("unexpected error on creating Triton parameter")
		}
		return nil
	})
	return params, err
}

// unloadParameters reads the one parameter of an unload call.
func unloadParameters(body []byte) (dependents bool, err error) {
	err = parameters(body, func(s *json.Scanner, key string) (err error) {
		if key != "unload_dependents" {
			return s.Skip()
		}
		dependents, err = boolean(s)
		return err
	})
	return dependents, err
}

// parameters calls f at each member of the document's "parameters".
func parameters(body []byte, f func(s *json.Scanner, key string) error) error {
	if len(body) == 0 {
		return nil
	}
	return members(body, func(s *json.Scanner, key string) error {
		if key != "parameters" {
			return s.Skip()
		}
		if s.Kind() != json.Object {
			if err := s.Skip(); err != nil {
				return err
			}
			return &json.Error{Text: json.NotObject}
		}
		err, meaning := each(s, f)
		if err != nil {
			return err
		}
		return meaning
	})
}
