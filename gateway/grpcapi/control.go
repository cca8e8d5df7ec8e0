package grpcapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// answer runs one call of the control part: open, ask, close.
func answer[T any](ctx context.Context, s *Service, method string, action infer.Action, name, version string, ask func() (T, error)) (T, error) {
	return answerWithin(ctx, s, method, infer.Envelope{Action: action, Model: name, Version: version},
		func(context.Context) (T, error) { return ask() })
}

// answerWithin is answer for what asks with the context that the call was opened with. what is its
// action, model and version.
func answerWithin[T any](ctx context.Context, s *Service, method string, what infer.Envelope, ask func(ctx context.Context) (T, error)) (T, error) {
	env := infer.Envelope{Method: method, Change: methods[method].changes}
	ctx, err := s.open(ctx, &env, what.Action, what.Model, what.Version)
	var v, none T
	if err == nil {
		v, err = ask(ctx)
	}
	if err == nil {
		v = shown(s, &env, v)
	}
	if err == nil {
		s.count(codes.OK)
	} else {
		v, err = none, s.failed(ctx, method, nil, err)
	}
	s.pipeline.Close(&env, &infer.End{Status: int(status.Code(err)), Err: err})
	return v, err
}

// ServerLive says whether the server runs.
func (s *Service) ServerLive(ctx context.Context, _ *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return answer(ctx, s, "ServerLive", infer.ActionHealth, "", "", func() (*inference.ServerLiveResponse, error) {
		return &inference.ServerLiveResponse{Live: s.control.Live()}, nil
	})
}

// ServerReady says whether the server takes requests.
func (s *Service) ServerReady(ctx context.Context, _ *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	return answer(ctx, s, "ServerReady", infer.ActionHealth, "", "", func() (*inference.ServerReadyResponse, error) {
		return &inference.ServerReadyResponse{Ready: s.ready(ctx)}, nil
	})
}

// ModelReady says whether a model, or one version of it, takes requests.
func (s *Service) ModelReady(ctx context.Context, r *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	return answer(ctx, s, "ModelReady", infer.ActionHealth, r.Name, r.Version, func() (*inference.ModelReadyResponse, error) {
		ready, err := s.control.ModelReadyNow(ctx, r.Name, r.Version)
		return &inference.ModelReadyResponse{Ready: ready}, err
	})
}

// ServerMetadata names the server, its version and its extensions.
func (s *Service) ServerMetadata(ctx context.Context, _ *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	return answer(ctx, s, "ServerMetadata", infer.ActionMetadata, "", "", func() (*inference.ServerMetadataResponse, error) {
		return s.control.ServerMetadata(), nil
	})
}

// ModelMetadata describes a model's tensors.
func (s *Service) ModelMetadata(ctx context.Context, r *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	return answer(ctx, s, "ModelMetadata", infer.ActionMetadata, r.Name, r.Version, func() (*inference.ModelMetadataResponse, error) {
		return s.control.ModelMetadata(r.Name, r.Version)
	})
}

// ModelConfig gives a model's configuration as it was completed.
func (s *Service) ModelConfig(ctx context.Context, r *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	return answer(ctx, s, "ModelConfig", infer.ActionModelConfig, r.Name, r.Version, func() (*inference.ModelConfigResponse, error) {
		cfg, err := s.control.ModelConfig(r.Name, r.Version)
		return &inference.ModelConfigResponse{Config: cfg}, err
	})
}

// ModelStatistics gives the counters of one or all models.
func (s *Service) ModelStatistics(ctx context.Context, r *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	return answer(ctx, s, "ModelStatistics", infer.ActionStatistics, r.Name, r.Version, func() (*inference.ModelStatisticsResponse, error) {
		return s.control.Statistics(r.Name, r.Version)
	})
}

// RepositoryIndex lists the models and their states.
func (s *Service) RepositoryIndex(ctx context.Context, r *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	return answer(ctx, s, "RepositoryIndex", infer.ActionModelRepository, "", "", func() (*inference.RepositoryIndexResponse, error) {
		if r.RepositoryName != "" {
			return nil, errRepositoryName()
		}
		return s.control.Index(r.Ready)
	})
}

// LogSettings changes and gives the settings of the log.
func (s *Service) LogSettings(ctx context.Context, r *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	return answer(ctx, s, "LogSettings", infer.ActionLogging, "", "", func() (*inference.LogSettingsResponse, error) {
		return s.control.LogSettings(r)
	})
}
