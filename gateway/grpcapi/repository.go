package grpcapi

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// errRepositoryName has the original's words.
func errRepositoryName() error {
	return infer.Errorf(infer.Unsupported, "'repository_name' specification is not supported")
}

func repositoryCall(model string) infer.Envelope {
	return infer.Envelope{Action: infer.ActionModelRepository, Model: model}
}

// RepositoryModelLoad loads a model, or loads it again.
func (s *Service) RepositoryModelLoad(ctx context.Context, r *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	return answerWithin(ctx, s, "RepositoryModelLoad", repositoryCall(r.ModelName), func(ctx context.Context) (*inference.RepositoryModelLoadResponse, error) {
		if r.RepositoryName != "" {
			return nil, errRepositoryName()
		}
		return &inference.RepositoryModelLoadResponse{}, s.control.Load(ctx, r.ModelName, r.Parameters)
	})
}

// RepositoryModelUnload takes a model out of service.
// Source of the text: the model repository extension in the original's grpc_server.cc.
func (s *Service) RepositoryModelUnload(ctx context.Context, r *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	return answerWithin(ctx, s, "RepositoryModelUnload", repositoryCall(r.ModelName), func(ctx context.Context) (*inference.RepositoryModelUnloadResponse, error) {
		if r.RepositoryName != "" {
			return nil, errRepositoryName()
		}
		dependents := false
		if p, ok := r.Parameters["unload_dependents"]; ok {
			b, ok := p.GetParameterChoice().(*inference.ModelRepositoryParameter_BoolParam)
			if !ok {
				return nil, infer.Errorf(infer.InvalidArg, "invalid value type for 'unload_dependents' parameter, expected bool_param.")
			}
			dependents = b.BoolParam
		}
		return &inference.RepositoryModelUnloadResponse{}, s.control.Unload(ctx, r.ModelName, dependents)
	})
}
