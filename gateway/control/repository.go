package control

import (
	"context"
	"strings"

	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// Load is a load call. Its parameters are "config", a model configuration as a string of
// JSON, and "file:<path>", bytes, never to be changed any more. Errors are those
// of repository.Load, and InvalidArg for other parameters.
// Source of the texts: the original's grpc_server.cc.
func (s *Server) Load(ctx context.Context, name string, params map[string]*inference.ModelRepositoryParameter) error {
	call := &repository.Override{}
	for key, p := range params {
		switch {
		case key == "config":
			v, ok := p.GetParameterChoice().(*inference.ModelRepositoryParameter_StringParam)
			if !ok {
				return infer.Errorf(infer.InvalidArg, "invalid value type for load parameter '%s', expected string_param.", key)
			}
			call.Config = &v.StringParam
		case strings.HasPrefix(key, "file:"):
			v, ok := p.GetParameterChoice().(*inference.ModelRepositoryParameter_BytesParam)
			if !ok {
				return infer.Errorf(infer.InvalidArg, "invalid value type for load parameter '%s', expected bytes_param.", key)
			}
			if call.Files == nil {
				call.Files = map[string][]byte{}
			}
			call.Files[strings.TrimPrefix(key, "file:")] = v.BytesParam
		default:
			return infer.Errorf(infer.InvalidArg, "unrecognized load parameter '%s'.", key)
		}
	}
	return s.models.Load(ctx, name, call)
}

// Unload is an unload call; errors are those of repository.Unload.
func (s *Server) Unload(ctx context.Context, name string, dependents bool) error {
	return s.models.Unload(ctx, name, dependents)
}
