package gateway

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/repository"
)

// newPipeline joins the steps of a request. Interfaces of what is off stay nil.
func (g *Gateway) newPipeline() *pipeline.Pipeline {
	d := pipeline.Deps{Models: models{g.models}, Guard: g.auth, Tracer: g.tracer, Cache: g.cache,
		Responses: g.responses, Ended: g.ended,
		Regions: g.workers} // without clients' memory, too: steps of ensembles may have tensors in device memory
	if g.limits != nil {
		d.Admission = g.limits
	}
	return pipeline.New(pipeline.Config{Timings: g.cfg.Observe.Timings, ClassBytes: g.cfg.ClassesLimit}, d)
}

// models is the repository as the pipeline wants it.
type models struct{ *repository.Repository }

// Acquire fits pipeline.Models.
func (m models) Acquire(ctx context.Context, name, version string) (pipeline.Model, error) {
	v, err := m.Repository.Acquire(ctx, name, version)
	if err != nil {
		return nil, err
	}
	return v, nil
}
