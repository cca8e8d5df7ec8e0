package gateway

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/calls"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/infer"
)

// openCalls makes what models call. The rest of the gateway is there when the first model is
// loaded.
func (g *Gateway) openCalls() {
	g.calls = calls.New(calls.Config{Depth: g.cfg.CallDepth}, calls.Deps{
		Steps:   func(namespace string) calls.Steps { return steps{g.models, g.pipeline, g.workers, namespace} },
		Allowed: func(env *infer.Envelope, model string) error { return g.pipeline.Allowed(env, model) },
		Models:  func() calls.Models { return g.models },
		Load: func(ctx context.Context, model, config string, files map[string][]byte) error {
			call := &repository.Override{Files: files}
			if config != "" {
				call.Config = &config
			}
			return g.models.Load(ctx, model, call)
		},
		Log: g.logger,
	})
}
